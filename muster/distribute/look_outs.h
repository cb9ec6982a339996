#pragma once

#include <chrono>
#include <functional>
#include <utility>

namespace muster {

// How a thread waits for results: it looks out for a moment before it goes to sleep, since a short function is back
// before a thread that sleeps would be woken. Who waits for one long function after the other looks out for a few of
// them only: fit() would keep a core of the workers busy for a sixtieth of its time. Of one thread.
class LookOuts {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit LookOuts(
      std::chrono::microseconds moment, std::function<Time()> now = [] { return std::chrono::steady_clock::now(); })
      : moment_(moment), now_(std::move(now)) {}

  // Until `there`, or as long as `sleep` takes.
  void wait(const std::function<bool()>& there, const std::function<void()>& sleep);

 private:
  static constexpr int kFew = 4, kNowAndThen = 16;

  const std::chrono::microseconds moment_;
  const std::function<Time()> now_;
  int in_vain_ = 0;  // results, one after the other, that took longer than a moment
};

}  // namespace muster
