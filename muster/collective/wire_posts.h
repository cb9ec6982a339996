// Tensors between ranks of different machines that wait for each other often.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/deadline_timer.h"
#include "muster/base/status.h"
#include "muster/near/near_process.h"

namespace muster {

// A TCP connection to each of some ranks of a group. A tensor is written from where it is and read into where it will
// be, with no copy in between but the kernel's. Whoever waits, for a message or for room to send one, reads whatever
// comes from any rank: nobody has to be woken but the process that waits, and no two ranks can wait for each other to
// read. Thread-safe.
class WirePosts {
 public:
  using Clock = std::chrono::steady_clock;

  // `sockets`: by rank; those without a number are of ranks that are reached otherwise. `look_out`: how long a thread
  // that waits looks before it sleeps.
  WirePosts(std::vector<Descriptor> sockets, std::chrono::microseconds look_out);
  ~WirePosts();

  bool has(int rank) const;

  // Returns when the caller may write to the tensor again. Throws Error{kUnavailable} if the rank is gone,
  // {kDeadlineExceeded} if it does not read all of it until then, what fail() was called with, and what `look` throws,
  // which is called now and then while there is no room.
  void send(int to, int64_t edge, const at::Tensor& tensor, Clock::time_point deadline,
            const std::function<void()>& look = {}) ABSL_LOCKS_EXCLUDED(mu_);
  // What comes from the rank under this number goes into this memory, if it fits. Until it is taken, nobody else writes
  // to that. REQUIRES: it is contiguous, and nothing of that number has come.
  void expect(int from, int64_t edge, at::Tensor into) ABSL_LOCKS_EXCLUDED(mu_);
  // What the rank has sent under this number. Nothing: it was not there until then, or somebody has called `wake`.
  // Throws Error{kUnavailable} if the rank is gone, or what it has failed with.
  std::optional<at::Tensor> take(int from, int64_t edge, Clock::time_point until) ABSL_LOCKS_EXCLUDED(mu_);
  // Reads what has come, for those who wait elsewhere.
  void read_now() ABSL_LOCKS_EXCLUDED(mu_);
  // Whoever waits looks whether it still wants to.
  void wake() ABSL_LOCKS_EXCLUDED(mu_);
  // Whoever waits here gets this. Throws nothing.
  void hear(const Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // And whoever waits at another rank, unless it is in the middle of a message of this one: it must hear of it another
  // way, too. Throws nothing.
  void fail(const Status& why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Connection;
  struct Header;
  struct Arrived;
  using Key = std::pair<int, int64_t>;  // rank and edge

  // Reads what comes until then, and puts it where it belongs. Another thread may be doing so: then it waits for that.
  void read(Clock::time_point until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // By the thread that reads: waits until something has come or the bell has rung, and takes what there is.
  std::vector<Arrived> arrivals(Clock::time_point until) ABSL_LOCKS_EXCLUDED(mu_);
  void check(int rank) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::chrono::microseconds look_out_;
  std::vector<std::unique_ptr<Connection>> connections_;  // by rank
  const Descriptor events_, bell_;

  mutable absl::Mutex mu_;
  SteadyCondVar changed_;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;  // a thread is at the sockets
  uint64_t wakes_ ABSL_GUARDED_BY(mu_) = 0;
  Status failure_ ABSL_GUARDED_BY(mu_);
  std::vector<Status> ended_ ABSL_GUARDED_BY(mu_);  // by rank
  absl::flat_hash_map<Key, at::Tensor> inbox_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Key, at::Tensor> expected_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
