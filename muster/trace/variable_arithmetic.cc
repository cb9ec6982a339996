#include "muster/trace/variable_arithmetic.h"

#include <ATen/TensorOperators.h>

namespace muster {

at::Tensor operator+(const Variable& a, const Variable& b) { return a.value() + b.value(); }
at::Tensor operator+(const Variable& a, const at::Scalar& b) { return a.value() + b; }
at::Tensor operator+(const at::Scalar& a, const Variable& b) { return a + b.value(); }

at::Tensor operator-(const Variable& a, const Variable& b) { return a.value() - b.value(); }
at::Tensor operator-(const Variable& a, const at::Scalar& b) { return a.value() - b; }
at::Tensor operator-(const at::Scalar& a, const Variable& b) { return a - b.value(); }

at::Tensor operator*(const Variable& a, const Variable& b) { return a.value() * b.value(); }
at::Tensor operator*(const Variable& a, const at::Scalar& b) { return a.value() * b; }
at::Tensor operator*(const at::Scalar& a, const Variable& b) { return a * b.value(); }

at::Tensor operator/(const Variable& a, const Variable& b) { return a.value() / b.value(); }
at::Tensor operator/(const Variable& a, const at::Scalar& b) { return a.value() / b; }
at::Tensor operator/(const at::Scalar& a, const Variable& b) { return a / b.value(); }

at::Tensor operator==(const Variable& a, const Variable& b) { return a.value() == b.value(); }
at::Tensor operator==(const Variable& a, const at::Scalar& b) { return a.value() == b; }
at::Tensor operator==(const at::Scalar& a, const Variable& b) { return a == b.value(); }

}  // namespace muster
