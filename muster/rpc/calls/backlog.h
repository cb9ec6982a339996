#pragma once

#include <chrono>

namespace muster {

// Tells whether events come faster than the thread that reads them can handle them. Of one thread.
class Backlog {
 public:
  // `waited`: for the next event. True once so many in a row had been there before anybody asked.
  bool grows(std::chrono::nanoseconds waited) {
    in_a_row_ = waited < kAtOnce ? in_a_row_ + 1 : 0;
    if (in_a_row_ < kMany) return false;
    in_a_row_ = 0;
    return true;
  }

 private:
  static constexpr std::chrono::microseconds kAtOnce{2};
  static constexpr int kMany = 32;

  int in_a_row_ = 0;
};

}  // namespace muster
