// The server's end of wires (see near_wire.h).
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "muster/rpc/calls/network_readers.h"
#include "muster/rpc/wires/near_wire.h"

namespace muster {

// One that a caller has laid. Thread-safe.
class WireToCaller {
 public:
  explicit WireToCaller(Descriptor socket) : socket_(std::move(socket)) {}

  // Ends the call that is under way. False: it was not sent.
  bool answer(const grpc::ByteBuffer& message) ABSL_LOCKS_EXCLUDED(mu_);
  bool refuse(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend class NearWireDoor;
  // To be called when the caller is gone while its call is under way.
  using Gone = std::function<void()>;
  // False: there is one already, which nobody honest does.
  bool begin() ABSL_LOCKS_EXCLUDED(mu_);
  // Calls it if that has happened meanwhile.
  void when_gone(Gone gone) ABSL_LOCKS_EXCLUDED(mu_);
  Gone end() ABSL_LOCKS_EXCLUDED(mu_);

  const Descriptor socket_;
  absl::Mutex reading_ ABSL_ACQUIRED_BEFORE(mu_);  // what comes is handled in the order in which it comes
  bool greeted_ ABSL_GUARDED_BY(reading_) = false;
  absl::Mutex mu_;
  bool busy_ ABSL_GUARDED_BY(mu_) = false;
  Gone gone_ ABSL_GUARDED_BY(mu_);
};

// A Unix socket that listens, and the wires that callers have laid. What they say is read by NetworkReaders.
// Thread-safe.
class NearWireDoor {
 public:
  // A call that has come, on a thread that reads; the event handles it, and answers on the wire.
  struct Arrived {
    std::shared_ptr<WireToCaller> wire;
    std::string method;
    grpc::ByteBuffer message;
  };
  struct Handling {
    NetworkEvent* event;
    std::function<void()> gone;  // for when the caller gives the call up
  };
  // Nothing: it is not taken, and the wire is closed.
  using Take = std::function<std::optional<Handling>(Arrived)>;

  NearWireDoor(Take take, const NetworkReadersOptions& readers);
  // Closes all wires. REQUIRES: no call is under way, nor taken any more.
  ~NearWireDoor();
  NearWireDoor(const NearWireDoor&) = delete;
  NearWireDoor& operator=(const NearWireDoor&) = delete;

  const std::string& name() const { return name_; }  // empty where there can be none
  const NearWireSecret& secret() const { return secret_; }
  size_t wires() const ABSL_LOCKS_EXCLUDED(mu_);
  // For tests: each ends with the call that is under way on it, and callers lay others.
  void break_all() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool next(void** tag, bool* ok, std::chrono::nanoseconds* waited) ABSL_LOCKS_EXCLUDED(mu_);
  void let_in() ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<WireToCaller> find(uint64_t number) const ABSL_LOCKS_EXCLUDED(mu_);
  // What handles the call that has come on it; null: none has.
  // `hung_up`: the caller, so that nothing else comes.
  NetworkEvent* read(const std::shared_ptr<WireToCaller>& wire, uint64_t number, bool hung_up) ABSL_LOCKS_EXCLUDED(mu_);
  bool greets(const NearWireMessage& message) const;
  void drop(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);
  bool watch(const Descriptor& what, uint64_t number, uint32_t events) const;

  const Take take_;
  const NearWireSecret secret_;
  const Descriptor watched_, end_;  // an epoll, and what ends the reading
  std::string name_;
  Descriptor listener_;

  mutable absl::Mutex mu_;
  uint64_t last_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::shared_ptr<WireToCaller>> wires_ ABSL_GUARDED_BY(mu_);
  std::optional<NetworkReaders> readers_;  // last: they use all of the above
};

}  // namespace muster
