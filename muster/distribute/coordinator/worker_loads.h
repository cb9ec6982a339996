// Which worker is the next to be sent something.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <optional>
#include <vector>

namespace muster {

// How many messages are under way to each worker, and who may get another one. What it costs does not depend on how
// many workers there are. Thread-safe.
class WorkerLoads {
 public:
  // `most`: messages under way to one worker.
  WorkerLoads(size_t workers, int most);

  // A worker that may get one more, and counts as having it from now on: one with the least under way, and of those
  // the last of those that are warm, or else the one that has waited longest. None if there is none. Until it is said
  // to be short, the message may take long, and the worker gets no more: what waits at one worker is out of reach of
  // the others.
  std::optional<size_t> take() ABSL_LOCKS_EXCLUDED(mu_);
  // The same for this one; false if it may not.
  bool take(size_t worker) ABSL_LOCKS_EXCLUDED(mu_);
  // It is sent one more than it was taken for.
  void count_another(size_t worker) ABSL_LOCKS_EXCLUDED(mu_);
  // The message that it was taken for does not take long. Whoever looked for a worker before may have found none.
  void count_short(size_t worker) ABSL_LOCKS_EXCLUDED(mu_);
  // One message less is under way to it, `was_long` unless it was counted as short. `warm`: what the next one needs is
  // in its processor's cache, and its thread awake, so that the same again costs less there than anywhere else.
  void give_back(size_t worker, bool was_long, bool warm = false) ABSL_LOCKS_EXCLUDED(mu_);

  // At first none is there. Each time that one is found it has a higher generation. Who tells of it may be late: what
  // is said of an earlier generation does not count, and one that was lost is not there any more.
  void found(size_t worker, uint64_t generation) ABSL_LOCKS_EXCLUDED(mu_);
  void lost(size_t worker, uint64_t generation) ABSL_LOCKS_EXCLUDED(mu_);

  int under_way() const { return under_way_.load(std::memory_order_relaxed); }  // to all of them
  int under_way(size_t worker) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Line = std::list<size_t>;  // of workers with the same number under way, the next one first
  struct Load {
    int messages = 0, long_ones = 0;  // of those
    bool there = false;
    uint64_t generation = 0;    // of which it is known whether it is there
    std::optional<int> line{};  // where it stands
    Line::iterator place{};
  };

  void set_there(size_t worker, bool there, uint64_t generation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void place(size_t worker, bool first = false) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void count(size_t worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int most_;
  std::atomic<int> under_way_ = 0;

  mutable absl::Mutex mu_;
  std::vector<Load> loads_ ABSL_GUARDED_BY(mu_);
  std::vector<Line> lines_ ABSL_GUARDED_BY(mu_);  // by how many are under way
  Line spare_ ABSL_GUARDED_BY(mu_);               // a node for each worker that stands in no line
};

}  // namespace muster
