#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <deque>
#include <functional>

namespace muster {

// Lets work of one sequence be done one after the other, in the order in which it comes. Who waits for a turn holds no
// thread: whoever is at work does the next in line, too. Thread-safe.
class RunTurns {
 public:
  // Calls `work` on this thread, or, if another one of this sequence is at work, on the thread of that one.
  // REQUIRES: `work` does not throw.
  void take(uint64_t sequence, std::function<void()> work) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Line = std::deque<std::function<void()>>;

  // The next in line, or none: then somebody else may begin.
  std::function<void()> next(uint64_t sequence) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, Line> lines_ ABSL_GUARDED_BY(mu_);  // by sequence, while one of it is at work
};

}  // namespace muster
