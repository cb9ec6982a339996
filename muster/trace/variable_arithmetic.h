// Variables in formulas: w + v, 2 * w, w == v, element by element, as for tensors. A variable beside a tensor becomes
// one by itself. The work is in a .cc: libtorch's own operators cost 5 s of every file that includes them.
#pragma once

#include <ATen/core/Tensor.h>

#include "muster/trace/variable.h"

namespace muster {

at::Tensor operator+(const Variable& a, const Variable& b);
at::Tensor operator+(const Variable& a, const at::Scalar& b);
at::Tensor operator+(const at::Scalar& a, const Variable& b);
at::Tensor operator-(const Variable& a, const Variable& b);
at::Tensor operator-(const Variable& a, const at::Scalar& b);
at::Tensor operator-(const at::Scalar& a, const Variable& b);
at::Tensor operator*(const Variable& a, const Variable& b);
at::Tensor operator*(const Variable& a, const at::Scalar& b);
at::Tensor operator*(const at::Scalar& a, const Variable& b);
at::Tensor operator/(const Variable& a, const Variable& b);
at::Tensor operator/(const Variable& a, const at::Scalar& b);
at::Tensor operator/(const at::Scalar& a, const Variable& b);
// Where they are equal; the handles themselves are not compared.
at::Tensor operator==(const Variable& a, const Variable& b);
at::Tensor operator==(const Variable& a, const at::Scalar& b);
at::Tensor operator==(const at::Scalar& a, const Variable& b);

}  // namespace muster
