// Waits that take as long as they should, whatever is done to the clock on the wall: absl's own go by that one, and one
// for twenty seconds would take eighty if it were set back by a minute meanwhile.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <thread>

namespace muster {

// absl::CondVar with another clock. Thread-safe. REQUIRES: what is signalled was changed with the mutex held.
class SteadyCondVar {
 public:
  void wait(absl::Mutex& mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // False: so much time has passed.
  bool wait_for(absl::Mutex& mu, absl::Duration time) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void signal() {
    if (waiting_.load() > 0) changed_.notify_one();
  }
  void signal_all() {
    if (waiting_.load() > 0) changed_.notify_all();
  }

 private:
  std::condition_variable_any changed_;
  std::atomic<int> waiting_ = 0;  // most signals are for nobody, and cost no more than this
};

// Calls back when some time has passed. Thread-safe; callbacks run one at a time on the timer's thread, and must be
// short.
class DeadlineTimer {
 public:
  DeadlineTimer() = default;
  ~DeadlineTimer();
  DeadlineTimer(const DeadlineTimer&) = delete;
  DeadlineTimer& operator=(const DeadlineTimer&) = delete;

  // Once it is destroyed the callback is not running and will not run; a destructor that is called by the callback
  // itself does not wait for it.
  class [[nodiscard]] Alarm {
   public:
    Alarm() = default;
    Alarm(DeadlineTimer& timer, uint64_t id) : timer_(&timer), id_(id) {}
    ~Alarm();
    Alarm(Alarm&& other) noexcept : timer_(std::exchange(other.timer_, nullptr)), id_(other.id_) {}
    Alarm& operator=(Alarm&&) = delete;

   private:
    DeadlineTimer* timer_ = nullptr;
    uint64_t id_ = 0;
  };

  Alarm after(absl::Duration time, std::function<void()> callback) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    std::chrono::steady_clock::time_point when;
    std::function<void()> callback;
  };

  void work() ABSL_LOCKS_EXCLUDED(mu_);
  void cancel(uint64_t id) ABSL_LOCKS_EXCLUDED(mu_);

  absl::Mutex mu_;
  SteadyCondVar changed_;
  std::map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::set<std::pair<std::chrono::steady_clock::time_point, uint64_t>> order_ ABSL_GUARDED_BY(mu_);  // when, and which
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t running_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread::id worker_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<std::jthread> thread_ ABSL_GUARDED_BY(mu_);  // started by the first alarm
};

// absl::Mutex::Await for so much time: false if the condition did not hold within it. Lets go of `mu` once more at the
// end.
bool await_for(absl::Mutex& mu, const absl::Condition& condition, absl::Duration time)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

}  // namespace muster
