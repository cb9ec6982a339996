// What the time of a worker's runs is spent on.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <chrono>
#include <istream>

namespace muster {

// How long threads have been at something, those included that still are. Thread-safe.
class TimeSpent {
 public:
  using Clock = std::chrono::steady_clock;

  void begin(Clock::time_point now = Clock::now()) ABSL_LOCKS_EXCLUDED(mu_);
  void end(Clock::time_point now = Clock::now()) ABSL_LOCKS_EXCLUDED(mu_);
  // All of them together.
  std::chrono::nanoseconds total(Clock::time_point now = Clock::now()) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  int at_it_ ABSL_GUARDED_BY(mu_) = 0;
  Clock::duration sum_ ABSL_GUARDED_BY(mu_){};  // of those that have ended, less when the others began
};

// Where a run waits in several lanes at once, each of them counts. Thread-safe.
struct RunTimes {
  TimeSpent running{};  // what coordinators have sent, with all that it waits for
  TimeSpent input{};    // waiting for elements of sequences
  TimeSpent peers{};    // waiting for other tasks
};

// Of all threads of this process, since its start.
double used_cpu_seconds();

// How busy the processors of this machine are, whoever keeps them so.
struct MachineTime {
  int cores = 0;            // 0: the system does not say
  double idle_seconds = 0;  // of all of them, since it was started
};
MachineTime machine_time();
// By what the system says in /proc/stat, and its ticks in a second.
MachineTime machine_time(std::istream& stat, double ticks);

// Adds the time from its construction to its destruction, if there is something to add it to.
class [[nodiscard]] AddTime {
 public:
  explicit AddTime(TimeSpent* spent) : spent_(spent) {
    if (spent_ != nullptr) spent_->begin();
  }
  ~AddTime() {
    if (spent_ != nullptr) spent_->end();
  }
  AddTime(const AddTime&) = delete;
  AddTime& operator=(const AddTime&) = delete;

 private:
  TimeSpent* const spent_;
};

}  // namespace muster
