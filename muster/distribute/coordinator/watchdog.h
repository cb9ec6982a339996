#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>

#include "muster/base/deadline_timer.h"

namespace muster {

// What MUSTER_COORDINATOR_WATCHDOG_TIMEOUT says, or else TF_CLUSTER_COORDINATOR_WATCH_DOG_TIMEOUT: seconds. None if
// neither is set, or to a number that is not positive. Throws kInvalidArgument for what is no number.
std::optional<std::chrono::milliseconds> watchdog_timeout_from_environment();

// Writes the stacks of all threads of this process, each with its number and name, for a person who wants to know
// where a program hangs. It borrows the signal SIGRTMAX - 2 meanwhile, which interrupts system calls; a thread that
// blocks this signal is listed without a stack.
void write_all_stacks(int fd);

struct WatchdogOptions {
  std::optional<std::chrono::milliseconds> timeout{};  // none: watchdog_timeout_from_environment()
  std::function<void()> on_silence{};                  // none: logs a warning and writes all stacks to stderr
};

// Calls on_silence when alive() was not called for a time, and again after each further such time of silence.
// Without a timeout, or with one that is not positive, it does nothing and has no thread.
// Thread-safe. on_silence runs on the watchdog's thread, must not throw, and may call anything but the destructor.
class Watchdog {
 public:
  explicit Watchdog(WatchdogOptions options = {});
  ~Watchdog() { stop(); }
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  bool watching() const { return timeout_.has_value(); }

  // Costs a look at the clock and a store.
  void alive() noexcept { last_alive_.store(Clock::now().time_since_epoch(), std::memory_order_relaxed); }

  // Once it returns, on_silence is not running (unless it is the caller) and will not run.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  void watch();
  bool wait_for_silence();  // false: it was stopped
  void end_call();

  const std::optional<std::chrono::milliseconds> timeout_;
  const std::function<void()> on_silence_;
  std::atomic<Clock::duration> last_alive_ = Clock::now().time_since_epoch();

  absl::Mutex mu_;
  SteadyCondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread::id caller_ ABSL_GUARDED_BY(mu_);  // while on_silence runs

  std::jthread thread_;
};

}  // namespace muster
