// Work beside other work that is more urgent.
#pragma once

#include <chrono>
#include <functional>

namespace muster {

// Keeps the thread that uses it to a share of a core's time, by rests. Not by a low priority: whoever has that, and
// holds what others wait for, may lose its core to those who do not wait.
// For one thread.
class WorkShare {
 public:
  using Sleep = std::function<void(std::chrono::nanoseconds)>;

  // REQUIRES: 0 < share <= 1. Counts from here on.
  explicit WorkShare(double share, Sleep sleep = sleep_for);

  // Rests for what was computed since the last time. Time that went by while it waited, for a disk, is a rest, too.
  void rest();

 private:
  using Clock = std::chrono::steady_clock;

  static void sleep_for(std::chrono::nanoseconds time);
  static std::chrono::nanoseconds computed();  // by this thread, ever

  const double share_;
  const Sleep sleep_;
  std::chrono::nanoseconds computed_ = computed();
  Clock::time_point rested_ = Clock::now();
};

}  // namespace muster
