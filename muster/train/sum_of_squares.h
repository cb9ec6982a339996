// What lengths of gradients and weights are made of.
#pragma once

#include <ATen/core/Tensor.h>

namespace muster {

// float16 ends at 65504: the square of 256 is none of its numbers, and that of 0.0001 is 0. All other types have the
// range of float32, and stay.
inline at::Tensor with_range_for_squares(const at::Tensor& values) {
  return values.scalar_type() == at::kHalf ? values.to(at::kFloat) : values;
}

inline at::Tensor sum_of_squares(const at::Tensor& values) { return with_range_for_squares(values).square().sum(); }

}  // namespace muster
