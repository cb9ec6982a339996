#include "muster/collective/measure_sizes_of.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "muster/base/strings.h"

namespace muster {

std::string measure_sizes_of(Collectives& group, AllReduceSizes& in_use) {
  using Clock = std::chrono::steady_clock;
  constexpr std::array kWays{AllReduceWay::kInFirstMessage, AllReduceWay::kWhole, AllReduceWay::kInParts};
  constexpr int64_t kShort = int64_t{128} << 10;  // bytes, that take so little that they may be tried more often
  const MeasuredSizes measured = measure_sizes([&](int64_t bytes) {
    const at::Tensor values = at::zeros({bytes / static_cast<int64_t>(sizeof(float))}, at::kFloat);
    std::array<double, kWays.size()> seconds{};
    const int times = bytes <= kShort ? 10 : 4;  // the best of which counts: what disturbs one makes it slower
    for (int time = 0; time < times; ++time) {
      for (size_t way = 0; way < kWays.size(); ++way) {  // in turn, so that it disturbs all of them alike
        in_use = AllReduceSizes::always(kWays[way]);
        const auto began = Clock::now();
        group.run({.purpose = "measuring"}, {values});
        const double took = std::chrono::duration<double>(Clock::now() - began).count();
        seconds[way] = time == 0 ? took : std::min(seconds[way], took);
      }
    }
    // As it was for the slowest, so that all choose alike.
    in_use = AllReduceSizes::always(AllReduceWay::kInFirstMessage);
    const at::Tensor own = at::tensor({seconds[0], seconds[1], seconds[2]}, at::kDouble);
    const at::Tensor slowest = group.run({.reduction = Reduction::kMax, .purpose = "measuring"}, {own})[0];
    for (size_t way = 0; way < kWays.size(); ++way) seconds[way] = slowest[static_cast<int64_t>(way)].item<double>();
    return seconds;
  });
  in_use = measured.sizes;
  return str_cat(" (measured: ", std::llround(measured.least_seconds * 1e6), " us for ", measured.least_bytes >> 10,
                 " KiB, ", std::llround(measured.most_seconds * 1e6), " us for ", measured.most_bytes >> 10, " KiB)");
}

}  // namespace muster
