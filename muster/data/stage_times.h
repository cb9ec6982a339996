// How long each stage of an opened dataset works, how many threads it gets, and how long is waited for its elements.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/runtime/executor/input_timing.h"

namespace muster {

class DatasetNode;

// The time that one stage has spent itself. Thread-safe.
class Stage {
 public:
  using Clock = std::chrono::steady_clock;

  // `automatic`: how many threads it gets is found out.
  Stage(std::string name, int lane, int threads, bool automatic = false)
      : name_(std::move(name)), lane_(lane), automatic_(automatic), pooled_(threads > 1), threads_(threads) {}

  void add(Clock::duration time, int64_t elements) {
    time_.fetch_add(time.count(), std::memory_order_relaxed);
    elements_.fetch_add(elements, std::memory_order_relaxed);
  }
  bool pooled() const { return pooled_; }  // threads of the pool do it, and be it one of them
  int threads() const { return threads_.load(std::memory_order_relaxed); }
  StageTiming timing() const;

 private:
  friend class Spending;
  friend class StageTimes;

  const std::string name_;
  const int lane_;
  const bool automatic_, pooled_;
  std::atomic<int> threads_;
  std::atomic<int64_t> time_ = 0, elements_ = 0;  // of the clock's units
  // Of calls that this stage is the outermost of, on their thread.
  std::atomic<int64_t> calls_ = 0;
  std::atomic<bool> short_ = false;  // what is in them is
};

// This thread works on a stage while the object lives, but for what stages inside of it do: their time is theirs.
// To look at the clock costs 30 ns, and a record takes 500. So where stages take below ten microseconds on average, one
// call of the outermost in sixteen is measured, with all that is called in it, and counts as sixteen.
class [[nodiscard]] Spending {
 public:
  explicit Spending(Stage& stage);
  ~Spending();
  Spending(const Spending&) = delete;
  Spending& operator=(const Spending&) = delete;

 private:
  Stage& stage_;
  Stage* const outer_;
};

// This thread waits for others, or works for them: nothing of that is the time of the stage that it is at.
class [[nodiscard]] NotSpending {
 public:
  NotSpending();
  ~NotSpending();
  NotSpending(const NotSpending&) = delete;
  NotSpending& operator=(const NotSpending&) = delete;

 private:
  Stage* const running_;
  int64_t weight_ = 0, laps_ = 0;
  Stage::Clock::time_point began_, paused_;
};

// When a dataset is complained about: so many elements were waited for during this share of so many seconds.
struct WaitLimits {
  double share = 0.2;
  double seconds = 5;
  int64_t elements = 100;
};

// All stages of an opened dataset. Outlives its sources. Thread-safe.
class StageTimes {
 public:
  // `cores`: so many threads have all stages together whose number is found out, at least one each.
  explicit StageTimes(int cores, WaitLimits limits = {}) : cores_(cores), limits_(limits) {}
  StageTimes(const StageTimes&) = delete;
  StageTimes& operator=(const StageTimes&) = delete;

  // A step that is opened twice is one stage. Null if it takes no time to speak of.
  Stage* stage_of(const DatasetNode& node, int lane) ABSL_LOCKS_EXCLUDED(mu_);
  int cores() const { return cores_; }
  void note_prefetch() { prefetches_.store(true, std::memory_order_relaxed); }
  int new_lane() { return lanes_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // Somebody has waited for an element. Returns what to warn of, once.
  std::optional<std::string> waited(Stage::Clock::time_point begin, Stage::Clock::time_point end)
      ABSL_LOCKS_EXCLUDED(mu_);
  InputTiming timing() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  InputTiming locked_timing() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void share_cores() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);  // as nothing is measured yet
  void tune() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int cores_;
  const WaitLimits limits_;
  std::atomic<int> lanes_ = 0;
  std::atomic<bool> prefetches_ = false;  // one of its steps

  mutable absl::Mutex mu_;
  std::deque<Stage> stages_ ABSL_GUARDED_BY(mu_);
  std::map<const DatasetNode*, Stage*> of_nodes_ ABSL_GUARDED_BY(mu_);
  std::optional<Stage::Clock::time_point> first_ ABSL_GUARDED_BY(mu_);  // when the first element was asked for
  Stage::Clock::time_point last_ ABSL_GUARDED_BY(mu_);                  // when the last one came
  Stage::Clock::duration waited_ ABSL_GUARDED_BY(mu_){};
  int64_t elements_ ABSL_GUARDED_BY(mu_) = 0;
  bool automatic_ ABSL_GUARDED_BY(mu_) = false;  // is one of them
  InputTiming tuned_ ABSL_GUARDED_BY(mu_);       // what was known then
  bool warned_ ABSL_GUARDED_BY(mu_) = false;
};

// The tuner. How many threads each stage gets for which `automatic` holds, by what all have done in some time (for the
// others, what they have): one, and then the next one goes to whichever holds the others up for longest. That ends
// when there is one for each core, or when something else takes as long: a stage whose threads are given, or whoever
// takes the elements, who was `busy` with them for so many seconds.
std::vector<int> tuned_threads(const std::vector<StageTiming>& stages, const std::vector<bool>& automatic, double busy,
                               int cores);

// What a dataset does, from its (first) source on: `read "a.csv", parse_csv, batch`. Steps without a name are left out.
std::string stages_of(const DatasetNode& node);

}  // namespace muster
