#include "muster/runtime/executor/run_times.h"

#include <sys/resource.h>

namespace muster {

// As if those that are at it had begun with the clock: each adds its time until now, and nobody looks at each of them.
void TimeSpent::begin(Clock::time_point now) {
  absl::MutexLock lock(&mu_);
  ++at_it_;
  sum_ -= now.time_since_epoch();
}

void TimeSpent::end(Clock::time_point now) {
  absl::MutexLock lock(&mu_);
  --at_it_;
  sum_ += now.time_since_epoch();
}

std::chrono::nanoseconds TimeSpent::total(Clock::time_point now) const {
  absl::MutexLock lock(&mu_);
  return sum_ + at_it_ * now.time_since_epoch();
}

double used_cpu_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace muster
