#include "muster/fit/tensorboard/histogram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "muster/base/status.h"

namespace muster {
namespace {

// Calls `visit` for each finite element, as a double: a block at a time, since a table may fill half of the memory.
template <class Visit>
void for_each_finite(const at::Tensor& flat, const Visit& visit) {
  constexpr int64_t kBlock = 1 << 20;
  for (int64_t begin = 0; begin < flat.numel(); begin += kBlock) {
    const at::Tensor block =
        flat.narrow(0, begin, std::min(kBlock, flat.numel() - begin)).to(at::kCPU, at::kDouble).contiguous();
    const auto* numbers = block.const_data_ptr<double>();
    for (int64_t i = 0; i < block.numel(); ++i) {
      if (std::isfinite(numbers[i])) visit(numbers[i]);
    }
  }
}

}  // namespace

std::vector<HistogramBucket> histogram_of(const at::Tensor& tensor, int buckets) {
  if (tensor.is_complex()) throw invalid_argument("histogram: of complex numbers, expected real ones");
  const at::Tensor flat = tensor.detach().reshape({-1});
  double least = std::numeric_limits<double>::infinity(), most = -least, count = 0;
  for_each_finite(flat, [&](double number) {
    least = std::min(least, number);
    most = std::max(most, number);
    ++count;
  });
  if (count == 0) return std::vector<HistogramBucket>(static_cast<size_t>(buckets), {0, 0, 0});
  std::vector<HistogramBucket> histogram;
  for (int i = 0; i < buckets; ++i) {
    // Not `range / buckets * i`: the range of the largest numbers is no number.
    auto edge = [&](int number) {
      const double part = static_cast<double>(number) / buckets;
      return number == buckets ? most : least * (1 - part) + most * part;
    };
    histogram.push_back({edge(i), edge(i + 1), 0});
  }
  if (least == most) {
    for (HistogramBucket& bucket : histogram) bucket.left = bucket.right = least;
    histogram.back().count = count;
    return histogram;
  }
  const double width = std::min(most - least, std::numeric_limits<double>::max()) / buckets;
  for_each_finite(flat, [&](double number) {
    const double place = std::floor((number - least) / width);
    ++histogram[static_cast<size_t>(std::clamp(place, 0.0, buckets - 1.0))].count;
  });
  return histogram;
}

}  // namespace muster
