#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <absl/time/time.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <optional>
#include <thread>

namespace muster {

// Calls back when some time has passed, whatever is done to the clock on the wall. Thread-safe; callbacks run one at a
// time on the timer's thread, and must be short.
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
  std::condition_variable_any changed_;  // absl's waits by the clock on the wall
  std::map<uint64_t, Entry> entries_ ABSL_GUARDED_BY(mu_);
  uint64_t next_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t running_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread::id worker_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<std::jthread> thread_ ABSL_GUARDED_BY(mu_);  // started by the first alarm
};

}  // namespace muster
