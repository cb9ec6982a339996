// Where the parts of a step meet.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/container/inlined_vector.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "muster/base/status.h"

namespace muster {

using ReceiveDone = std::function<void(const Status&, at::Tensor)>;

// The last steps that were aborted, and why. What stays for long among what comes and goes keeps pages of malloc from
// being given back, so the memory of all of them is one block.
class AbortedSteps {
 public:
  bool add(uint64_t step, const Status& why);  // false if it is known
  std::optional<Status> find(uint64_t step) const;

 private:
  struct Entry {
    uint64_t step = 0;
    StatusCode code = StatusCode::kOk;
    absl::InlinedVector<char, 232> message{};
    absl::InlinedVector<char, 64> task{};
    absl::InlinedVector<char, 16> detail{};
  };

  std::vector<Entry> entries_{};  // a ring, in the order of their coming
  size_t next_ = 0;
  absl::flat_hash_map<uint64_t, size_t> places_{};  // by step
};

// Holds the tensors of steps that wait for their reader, or readers that wait for their tensor.
// Invariant: an edge of a step is either a value or a waiter, never both; what is fetched is gone.
// Thread-safe. Waiters are called on the thread that sends or aborts, with no lock held.
class Rendezvous {
 public:
  // Throws Error{kAlreadyExists} if the edge has a value, the reason if the step was aborted. `owner`: of the value,
  // while it waits.
  void send(uint64_t step, int64_t edge, at::Tensor value, uint64_t owner = 0) ABSL_LOCKS_EXCLUDED(mu_);
  // Calls `done` once, at once if the value is there. Error{kAlreadyExists} if somebody else waits for it. Returns the
  // number of the waiter; 0 if it does not wait.
  uint64_t receive(uint64_t step, int64_t edge, ReceiveDone done) ABSL_LOCKS_EXCLUDED(mu_);
  // That waiter is told, if it still waits, and waits no more. REQUIRES: `why` is not ok.
  void give_up(uint64_t step, int64_t edge, uint64_t waiter, const Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Whoever waits is told, and whoever comes later. REQUIRES: `why` is not ok.
  void abort(uint64_t step, const Status& why) ABSL_LOCKS_EXCLUDED(mu_);

  // Nobody will come for the values of this owner. Returns how many there were.
  size_t drop(uint64_t owner) ABSL_LOCKS_EXCLUDED(mu_);

  size_t waiting_values() const ABSL_LOCKS_EXCLUDED(mu_);
  size_t values_of(uint64_t step) const ABSL_LOCKS_EXCLUDED(mu_);  // that wait

 private:
  struct Edge {
    at::Tensor value{};
    ReceiveDone waiter{};
    uint64_t number = 0;  // of the waiter
    uint64_t owner = 0;   // of the value
  };
  using Step = absl::flat_hash_map<int64_t, Edge>;

  mutable absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, Step> steps_ ABSL_GUARDED_BY(mu_);
  uint64_t waiters_ ABSL_GUARDED_BY(mu_) = 0;  // so far
  AbortedSteps aborted_ ABSL_GUARDED_BY(mu_);  // their parts may be under way to this task
};

}  // namespace muster
