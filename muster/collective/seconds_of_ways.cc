#include "muster/collective/seconds_of_ways.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>

namespace muster {

std::vector<double> seconds_of_ways(Collectives& group, const at::Tensor& values, int times, size_t ways,
                                    const std::function<void(size_t way)>& take) {
  using Clock = std::chrono::steady_clock;
  at::Tensor own = at::empty({static_cast<int64_t>(ways)}, at::kFloat);
  auto* best = own.mutable_data_ptr<float>();
  for (int time = 0; time < times; ++time) {
    for (size_t way = 0; way < ways; ++way) {  // in turn, so that what disturbs one disturbs all of them alike
      take(way);
      const auto began = Clock::now();
      group.run({.purpose = "measuring"}, {values});
      const float took = std::chrono::duration<float>(Clock::now() - began).count();
      best[way] = time == 0 ? took : std::min(best[way], took);
    }
  }
  take(0);
  const at::Tensor slowest = group.run({.reduction = Reduction::kMax, .purpose = "measuring"}, {own})[0];
  const auto* seconds = slowest.const_data_ptr<float>();
  return {seconds, seconds + ways};
}

size_t fastest_of(const std::vector<double>& seconds) {
  size_t fastest = 0;
  for (size_t way = 1; way < seconds.size(); ++way) {
    const double to_beat = fastest == 0 ? seconds[0] / kAsGood : seconds[fastest];
    if (seconds[way] < to_beat) fastest = way;
  }
  return fastest;
}

}  // namespace muster
