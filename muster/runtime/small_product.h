// Products of matrices that are too small for the way that libtorch takes.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

namespace muster {

// On arm64 libtorch hands the product with a transposed matrix to oneDNN, which needs 40 microseconds and more before
// it begins to multiply. It multiplies small ones itself, and faster than that, if the matrix is not transposed: so it
// gets a copy of it in rows. The result is equal up to rounding, and the same each time, since only the sizes decide.
bool is_worth_a_copy(const at::Tensor& first, const at::Tensor& second);

// Of a product whose factors are `first` and `second`.
inline void untranspose_small(const at::Tensor& first, c10::IValue& second) {
  if (is_worth_a_copy(first, second.toTensor())) second = second.toTensor().contiguous();
}

}  // namespace muster
