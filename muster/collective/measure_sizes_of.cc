#include "muster/collective/measure_sizes_of.h"

#include <ATen/ops/zeros.h>

#include <array>
#include <cmath>

#include "muster/base/strings.h"
#include "muster/collective/seconds_of_ways.h"

namespace muster {

std::string measure_sizes_of(Collectives& group, AllReduceSizes& in_use) {
  constexpr std::array kWays{AllReduceWay::kInFirstMessage, AllReduceWay::kWhole, AllReduceWay::kInParts};
  constexpr int64_t kShort = int64_t{128} << 10;  // bytes, that take so little that they may be tried more often
  const MeasuredSizes measured = measure_sizes([&](int64_t bytes) {
    const at::Tensor values = at::zeros({bytes / static_cast<int64_t>(sizeof(float))}, at::kFloat);
    const int times = bytes <= kShort ? 10 : 4;
    const std::vector<double> seconds = seconds_of_ways(
        group, values, times, kWays.size(), [&](size_t way) { in_use = AllReduceSizes::always(kWays[way]); });
    return std::array{seconds[0], seconds[1], seconds[2]};
  });
  in_use = measured.sizes;
  return str_cat(" (measured: ", std::llround(measured.least_seconds * 1e6), " us for ", measured.least_bytes >> 10,
                 " KiB, ", std::llround(measured.most_seconds * 1e6), " us for ", measured.most_bytes >> 10, " KiB)");
}

}  // namespace muster
