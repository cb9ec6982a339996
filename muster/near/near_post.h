// Tensors between two processes of one machine that wait for each other often.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <absl/synchronization/mutex.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/deadline_timer.h"
#include "muster/base/status.h"
#include "muster/near/near_tray.h"

namespace muster {

// What is small goes with a message on a Unix socket, what is larger lies in memory that both see, and what is too
// large for that is fetched another way, which the message says. Whoever waits reads the socket itself: nobody has to
// be woken but the process that waits. Thread-safe.
class NearPost {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kMost = size_t{1} << 20;  // bytes of a tensor

  // Fetches a tensor that the other one has said it has, and hands it to `deliver`. Waits for nothing.
  using Fetch = std::function<void(int64_t edge)>;

  NearPost(Descriptor socket, NearProcess other, SharedMemory ours, SharedMemory theirs);
  ~NearPost();

  // Before the first message. `look_out`: how long a thread that waits looks before it sleeps.
  void open(Fetch fetch, std::chrono::microseconds look_out);

  // Copies the tensor. False: it is too large, or there is no room for it, and the other one fetches it: the caller
  // leaves it where that is done. Throws Error{kUnavailable} if the other one is gone, {kDeadlineExceeded} if it reads
  // nothing until then, what fail() was called with, and what `look` throws, which is called now and then while there
  // is no room for letters.
  bool send(int64_t edge, const at::Tensor& tensor, Clock::time_point deadline, const std::function<void()>& look = {})
      ABSL_LOCKS_EXCLUDED(mu_);
  // What the other one has sent under this number: to be read, not written. Nothing: it was not there until then, or
  // somebody has called `wake`. Throws Error{kUnavailable} if the other one is gone, or what it has failed with.
  std::optional<at::Tensor> take(int64_t edge, Clock::time_point until) ABSL_LOCKS_EXCLUDED(mu_);
  // Copies the pieces out of the other one's memory, without asking it. False: this process may not, or there is no
  // such memory, or the other one is gone.
  bool read_memory(const std::vector<NearPiece>& pieces) const { return other_.read(pieces); }
  // Throws what the other one has failed with until now, or that it is gone, though what it has sent before is there.
  // One that has ended after it had read all that it was sent has not failed.
  void check() ABSL_LOCKS_EXCLUDED(mu_);
  // What was fetched. A failure is one of all that is waited for.
  void deliver(int64_t edge, const Status& status, at::Tensor tensor) ABSL_LOCKS_EXCLUDED(mu_);
  // Whoever waits looks whether it still wants to.
  void wake() ABSL_LOCKS_EXCLUDED(mu_);
  // Whoever waits here gets this, and so does the other one for all that it waits for, unless it reads nothing: then it
  // must hear of it another way. Throws nothing, and waits for a moment at most.
  void fail(const Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Letter;
  struct Arrived {
    int64_t edge;
    at::Tensor tensor;  // none: to be fetched
  };

  void ring() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads what comes until then, and puts it where it belongs. Another thread may be doing so: then it waits for that.
  void read(Clock::time_point until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // By the thread that reads. What was sent; nothing: not until then, or the bell has rung. Throws Error.
  std::optional<Arrived> next(Clock::time_point until);
  Arrived opened(std::span<const char> message);
  at::Tensor tensor_of(const Letter& letter, std::span<const char> inlined);
  // Places in memory are used in the order in which letters tell of them, so one thread at a time puts something there
  // and writes. It may wait for long, and is waited for no longer than `look` allows.
  void begin_to_send(Clock::time_point deadline, const std::function<void()>& look) ABSL_LOCKS_EXCLUDED(mu_);
  void end_sending() ABSL_LOCKS_EXCLUDED(mu_);
  void write(const Letter& letter, std::span<const char> inlined, Clock::time_point deadline,
             const std::function<void()>& look) ABSL_LOCKS_EXCLUDED(mu_);

  const Descriptor socket_, bell_;
  const NearProcess other_;                 // has said something since this one looked at it
  const std::shared_ptr<NearTrays> trays_;  // outlives the tensors in them
  Fetch fetch_;
  std::chrono::microseconds look_out_{};
  std::vector<char> buffer_;  // of the thread that reads
  bool read_all_ = false;     // likewise: the other one has ended, and had no letters left to read

  absl::Mutex mu_;
  SteadyCondVar changed_, sent_;
  bool sending_ ABSL_GUARDED_BY(mu_) = false;  // a thread puts and writes
  bool reading_ ABSL_GUARDED_BY(mu_) = false;  // a thread is at the socket
  uint64_t wakes_ ABSL_GUARDED_BY(mu_) = 0;
  Status ended_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<int64_t, at::Tensor> inbox_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<int64_t> fetched_ ABSL_GUARDED_BY(mu_);  // and not yet delivered
};

// How two processes come to have one. The one that listens tells the other the name over a connection that both trust;
// the token says that they mean the same. Nothing waits.
struct PostCaller {
  Descriptor socket;
  NearProcess process;
  SharedMemory memory;
};
std::optional<PostCaller> call_at(const std::string& name, uint64_t token, int rank);
// Answers those who have called. Their ranks, and their posts.
std::vector<std::pair<int, std::unique_ptr<NearPost>>> answer_callers(const Descriptor& listener, uint64_t token);
// When the other one has answered; null if it has not.
std::unique_ptr<NearPost> finish(PostCaller caller, uint64_t token);

}  // namespace muster
