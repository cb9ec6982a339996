// Closures that have run, until whoever schedules takes their memory for the next ones.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "muster/distribute/coordinator/worker_slot.h"

namespace muster {

// Malloc takes a block back into the heap that it came from. With many workers, all threads that receive answers would
// wait there for each other and for the one that schedules. So what a closure holds of others goes when it has run, and
// its own memory, with that of small arguments, where the next closure is made. A few hundred are kept at most.
// Thread-safe.
class SpentClosures {
 public:
  using Batch = std::vector<std::shared_ptr<ScheduledClosure>>;

  // Takes those that nobody else has, and lets go of the others.
  void give(Batch closures) ABSL_LOCKS_EXCLUDED(mu_);
  // Frees a few of them: to be called for each closure that is made.
  void free_some() ABSL_LOCKS_EXCLUDED(mu_);
  void free_all() ABSL_LOCKS_EXCLUDED(mu_);
  size_t count() const { return count_.load(std::memory_order_relaxed); }

  static constexpr size_t kMost = 512;
  static constexpr size_t kSmallArgument = 1024;  // bytes

 private:
  std::atomic<size_t> count_ = 0;  // changes under mu_

  absl::Mutex mu_;
  Batch closures_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
