// Makes calls: the part of a client that knows nothing of what they are about.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "muster/base/cancellation.h"
#include "muster/rpc/credentials/credentials.h"
#include "muster/rpc/frame.h"
#include "muster/rpc/rpc_faults.h"

namespace muster {

struct ChannelOptions {
  Credentials credentials{};
  std::chrono::milliseconds call_timeout{600'000};    // of a call that names no time of its own and is not patient
  std::chrono::milliseconds connect_timeout{60'000};  // until a task that does not answer is given up
  int attempts = 2;                                   // to make a call that was cut off
  std::chrono::milliseconds reconnect{250};           // for which such a call waits for the task to be back
  // Large tensors go from memory to memory where the task is a process of this machine that may be looked into.
  bool near_memory = true;
  // Elsewhere they go over connections of their own (see LineDoor), unless all is encrypted.
  bool lines = true;
  std::shared_ptr<RpcFaults> faults = ScopedRpcFaults::current();  // for tests
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
  // It changes something: however often it is made, the task applies it once.
  bool once = false;
  // Of a numbered request, how many tensors of the answer the task keeps until it hears that they have come. The others
  // need no message that says so.
  size_t kept_tensors = SIZE_MAX;
};

// A connection to one task. Pings find one that is gone without a word; a failed call says which task failed. A call
// that was cut off is made again. May end while calls that were started are under way: they end as they would have.
// Thread-safe.
class RpcChannel {
 public:
  RpcChannel(std::string address, std::string task, const ChannelOptions& options);
  ~RpcChannel();
  RpcChannel(const RpcChannel&) = delete;
  RpcChannel& operator=(const RpcChannel&) = delete;

  const std::string& address() const;
  const std::string& task() const;
  // It is known that nothing goes from memory to memory.
  bool apart() const;

  // Waits on this thread for the answer. Throws Error with the task where it began.
  Frame call(const std::string& method, Frame request, const CallOptions& options = {});

  using Done = std::function<void(const Status&, Frame)>;
  // Calls `done` once, on a thread of AnswerThreads, which it must not block. `options.cancellation` lives until then.
  void start(const std::string& method, Frame request, const CallOptions& options, Done done);

 private:
  class Core;  // what the calls hold

  const std::shared_ptr<Core> core_;
};

}  // namespace muster
