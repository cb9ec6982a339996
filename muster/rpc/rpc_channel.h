// Makes calls: the part of a client that knows nothing of what they are about.
#pragma once

#include <grpcpp/support/status.h>
#include <chrono>

#include <functional>
#include <memory>
#include <string>

#include "muster/base/cancellation.h"
#include "muster/base/elastic_pool.h"
#include "muster/rpc/credentials.h"
#include "muster/rpc/frame.h"
#include "muster/rpc/rpc_faults.h"

namespace muster {

class NearVisit;

struct ChannelOptions {
  Credentials credentials{};
  std::chrono::milliseconds call_timeout{600'000};    // of a call that names no time of its own and is not patient
  std::chrono::milliseconds connect_timeout{60'000};  // until a task that does not answer is given up
  int attempts = 2;                                   // to make a call that was cut off
  std::chrono::milliseconds reconnect{250};           // for which such a call waits for the task to be back
  // Large tensors go from memory to memory where the task is a process of this machine that may be looked into.
  bool near_memory = true;
  std::shared_ptr<RpcFaults> faults{};  // for tests
};

struct CallOptions {
  std::optional<std::chrono::milliseconds> timeout{};
  const Cancellation* cancellation = nullptr;
  // Try again, with growing pauses, until the task can be reached or connect_timeout has passed: for the first call to
  // a task that may not have been started yet. Else a task that cannot be reached is an error at once.
  bool wait_until_up = false;
  // Without a timeout it waits for as long as the task is alive, which pings tell: for what takes as long as it takes.
  bool patient = false;
  std::optional<int> attempts{};  // else those of the channel
};

// A connection to one task. Pings find one that is gone without a word; a failed call says which task failed. A call
// that was cut off is made again: who sends a mutation gives it a request id. Thread-safe.
class RpcChannel {
 public:
  RpcChannel(std::string address, std::string task, const ChannelOptions& options);
  ~RpcChannel();
  RpcChannel(const RpcChannel&) = delete;
  RpcChannel& operator=(const RpcChannel&) = delete;

  const std::string& address() const { return address_; }
  const std::string& task() const { return task_; }

  // Waits on this thread for the answer. Throws Error with the task where it began.
  Frame call(const std::string& method, Frame request, const CallOptions& options = {});

  using Done = std::function<void(const Status&, Frame)>;
  // Calls `done` once, on one of the AnswerThreads, which it must not block. `options.cancellation` lives until then.
  void start(const std::string& method, Frame request, const CallOptions& options, Done done);

 private:
  using CallDeadline = std::chrono::system_clock::time_point;
  struct Grpc;
  struct Outgoing;
  struct Pending;

  CallDeadline deadline_of(const CallOptions& options) const;
  // False: it is too late, or the task refuses connections (its process is gone) and that is to be the end.
  bool wait_until_connected(CallDeadline deadline, bool again_when_refused, const Cancellation* cancellation) const;
  void begin(std::shared_ptr<Pending> pending);
  void ended(const std::shared_ptr<Pending>& pending, const grpc::Status& status);
  Status explain(int code, const std::string& message) const;
  // Of a call that is nobody's: what becomes of it is not heard.
  void send_unattended(const std::string& method, const grpc::ByteBuffer& message, const CallDeadline& deadline) const;
  // Tells the task that a call was cancelled: that its stream has ended says no more than that it was cut off.
  void tell_cancelled(uint64_t request_id) const;
  void meet_task();
  Frame open(const grpc::ByteBuffer& answer, const Outgoing& request);
  RpcFaults::Fate fate_of(const std::string& method, const grpc::ByteBuffer& message, const CallDeadline& deadline);

  const std::string address_;
  const std::string task_;
  const ChannelOptions options_;
  const std::shared_ptr<Grpc> grpc_;
  const std::shared_ptr<NearVisit> near_;
  ElasticPool reconnects_{"reconnect", 4};  // for calls whose caller does not wait
};

}  // namespace muster
