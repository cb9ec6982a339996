#include "muster/runtime/executor/run_times.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

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

MachineTime machine_time() {
  std::ifstream stat("/proc/stat");
  return machine_time(stat, static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

// "cpu  USER NICE SYSTEM IDLE WAITING-FOR-DISKS …" for all of them, then "cpu0 …", "cpu1 …" and other lines.
MachineTime machine_time(std::istream& stat, double ticks) {
  MachineTime time;
  for (std::string line; std::getline(stat, line) && line.starts_with("cpu");) {
    if (!line.starts_with("cpu ")) {
      ++time.cores;
      continue;
    }
    std::istringstream fields(line.substr(4));
    double user = 0, nice = 0, system = 0, idle = 0, disks = 0;
    fields >> user >> nice >> system >> idle >> disks;
    time.idle_seconds = (idle + disks) / ticks;
  }
  return time;
}

}  // namespace muster
