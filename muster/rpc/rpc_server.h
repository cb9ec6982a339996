// Answers calls: the part of a server that knows nothing of what they are about.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/base/cancellation.h"
#include "muster/lines/line_door.h"
#include "muster/near/near_door.h"
#include "muster/rpc/credentials/credentials.h"
#include "muster/rpc/frame.h"

namespace muster {

class HandshakeWatch;
class NearWireDoor;
class OnceCalls;

// A call that waits for its answer.
class RpcCall {
 public:
  virtual ~RpcCall() = default;

  Frame& request() { return request_; }
  // Cancelled when the caller gives up, its connection is lost or the server stops.
  const Cancellation& cancellation() const { return cancellation_; }
  virtual const std::string& peer() const = 0;
  virtual std::chrono::steady_clock::time_point deadline() const = 0;  // of the caller
  virtual std::chrono::milliseconds age() const = 0;  // since its request was first made; 0: this is the first call
  // Exactly one of these, once, from any thread. Nothing of the call may be used afterwards.
  virtual void answer(Frame frame) = 0;
  virtual void fail(const Status& status) = 0;

 protected:
  Frame request_;
  Cancellation cancellation_;
};

struct RpcServerOptions {
  std::string address;  // "host:port"; port 0 picks one
  std::string task;     // for messages, and to say where an error began; calls that mean another one are refused
  uint64_t incarnation = 0;
  Credentials credentials{};
  bool insecure = false;  // listen beyond loopback without credentials
  int64_t max_message_bytes = int64_t{4} << 30;
  int max_calls_per_peer = 1024;  // under way at the same time, over one connection
  // That calls take at the same time: tensors of requests, and of answers by what the caller had of it the last time. A
  // call that would be one too many waits until others have ended, one that is larger than all of it until it is alone;
  // and, since calls may wait for each other, until nothing has ended for as long as that.
  int64_t max_bytes_under_way = int64_t{1} << 30;
  std::chrono::milliseconds bytes_patience{10'000};
  int max_threads = 128;                    // that work at the same time; threads that wait for others do not count
  std::function<void()> on_thread_start{};  // called by each of them first
  // Of answers that their clients have not acknowledged. A client of whom nothing is heard for so long is forgotten.
  int64_t remembered_bytes = int64_t{512} << 20;
  std::chrono::milliseconds remembered_for{3'600'000};
  // That a request with an id runs on when its connection is lost, for its caller to ask again. Both sides find a dead
  // connection by pings, one up to ten seconds after the other.
  std::chrono::milliseconds grace{10'000};
};

// Methods run on the threads that read the network (see NetworkReaders), of which two are always left: a method may
// block, and a call that does not costs no change of threads. Calls that wait keep nobody else from being answered (see
// CallGate). Thread-safe.
class RpcServer {
 public:
  // Must call `answer` or `fail`; what it throws becomes the answer.
  using Method = std::function<void(std::shared_ptr<RpcCall> call)>;
  enum class Pace {
    kUsual,  // may wait for others
    kShort,  // waits for nobody, but takes longer than to wake another thread
    kQuick,  // takes no longer than that
    kRun,    // a program, which knows its pace and may wait for others
  };
  struct MethodEntry {
    std::string name;  // "/muster.Worker/Run"
    Method method;
    bool once = false;  // a request with an id that is known gets the answer that it got before
    Pace pace = Pace::kUsual;
  };

  // Listens when it returns. Throws Error{kInvalidArgument} for an address without a port, Error{kAlreadyExists} if
  // somebody else listens there, Error{kFailedPrecondition} beyond loopback without credentials.
  RpcServer(RpcServerOptions options, std::vector<MethodEntry> methods);
  // Cancels what is under way and waits for it.
  ~RpcServer();
  RpcServer(const RpcServer&) = delete;
  RpcServer& operator=(const RpcServer&) = delete;

  const std::string& address() const { return address_; }  // with the port that it has
  uint64_t requests() const { return requests_.load(std::memory_order_relaxed); }
  size_t lines() { return lines_.lines(); }   // that others have laid to send large tensors
  void break_lines() { lines_.break_all(); }  // for tests; callers lay others
  size_t wires() const;                       // that callers of this machine have laid for small calls
  void break_wires();                         // for tests; callers lay others
  int64_t bytes_under_way() const;            // that calls hold
  size_t calls_kept_back() const;             // until others hold less
  size_t remembered_requests() const;         // of those that are applied once, for their clients to ask again

 private:
  friend class IncomingCall;
  friend class ServerCall;
  friend class NearServerCall;
  struct Grpc;  // keeps gRPC's headers out of this one

  // Around the life of a call, from the moment when it is waited for: gRPC's queue must not end before, not even if the
  // call has only just arrived. False: the server stops.
  bool enter() ABSL_LOCKS_EXCLUDED(mu_);
  void leave() ABSL_LOCKS_EXCLUDED(mu_);
  const MethodEntry* find(const std::string& name) const;
  void dispatch(const MethodEntry& entry, std::shared_ptr<RpcCall> call);
  // Throws if the caller may not call, or calls too much.
  void admit(const std::string& peer, const std::string& token) ABSL_LOCKS_EXCLUDED(mu_);
  void dismiss(const std::string& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Where callers of this machine lay wires, opened for the first who asks. Null: not wanted here.
  NearWireDoor* wire_door();
  void refuse_handshake(const std::string& host, const std::string& why) ABSL_LOCKS_EXCLUDED(mu_);

  const RpcServerOptions options_;
  absl::flat_hash_map<std::string, MethodEntry> methods_;
  std::string address_;
  std::atomic<uint64_t> requests_ = 0;
  const std::unique_ptr<OnceCalls> once_;
  NearDoor door_;
  LineDoor lines_;
  std::unique_ptr<Grpc> grpc_;

  absl::Mutex mu_;
  int calls_ ABSL_GUARDED_BY(mu_) = 0;  // also those that are waited for
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<std::string, int> calls_of_peer_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, int> refused_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<RpcCall*, std::weak_ptr<RpcCall>> under_way_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<HandshakeWatch> handshakes_;  // last: it calls back
};

}  // namespace muster
