#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <deque>
#include <functional>

namespace muster {

class ReadAhead;

// Lets work of one sequence be done one after the other, in the order in which it comes. Who waits for a turn holds no
// thread: whoever is at work does the next in line, too, and hands on what it has read ahead. Thread-safe.
class RunTurns {
 public:
  using Work = std::function<void(ReadAhead&)>;

  // Calls `work` on this thread, or, if another one of this sequence is at work, on the thread of that one. `program`
  // is what it runs first. REQUIRES: `work` does not throw.
  void take(uint64_t sequence, uint64_t program, Work work) ABSL_LOCKS_EXCLUDED(mu_);
  // The same if another one of this sequence is at work now, so that nothing is called here. Else false, and nothing
  // happens: `work` is as it was.
  bool join(uint64_t sequence, uint64_t program, Work& work) ABSL_LOCKS_EXCLUDED(mu_);
  // The program of the next in line; 0: nobody waits.
  uint64_t next_program(uint64_t sequence) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Waiting {
    uint64_t program;
    Work work;
  };
  using Line = std::deque<Waiting>;

  // The next in line, or none: then somebody else may begin.
  Work next(uint64_t sequence) ABSL_LOCKS_EXCLUDED(mu_);

  mutable absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, Line> lines_ ABSL_GUARDED_BY(mu_);  // by sequence, while one of it is at work
};

}  // namespace muster
