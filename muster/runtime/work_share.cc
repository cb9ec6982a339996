#include "muster/runtime/work_share.h"

#include <ctime>
#include <thread>
#include <utility>

namespace muster {

WorkShare::WorkShare(double share, Sleep sleep) : share_(share), sleep_(std::move(sleep)) {}

void WorkShare::rest() {
  const std::chrono::duration<double> due = (computed() - computed_) / share_;
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(due - (Clock::now() - rested_));
  if (left.count() > 0) sleep_(left);
  computed_ = computed();
  rested_ = Clock::now();
}

void WorkShare::sleep_for(std::chrono::nanoseconds time) { std::this_thread::sleep_for(time); }

std::chrono::nanoseconds WorkShare::computed() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace muster
