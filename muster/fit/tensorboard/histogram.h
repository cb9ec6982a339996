#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace muster {

struct HistogramBucket {
  double left, right, count;
};

// How the elements of a tensor are spread, in buckets of one width from the smallest to the largest, as
// tf.summary.histogram has them: if all are the same, the last bucket has them all, and without elements all are 0.
// What is not finite is left out. Throws Error{kInvalidArgument} for complex numbers.
std::vector<HistogramBucket> histogram_of(const at::Tensor& tensor, int buckets = 30);

}  // namespace muster
