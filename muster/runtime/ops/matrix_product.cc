#include "muster/runtime/ops/matrix_product.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <optional>

#include "muster/runtime/ops/float_product.h"
#include "muster/runtime/rows/row_table.h"

namespace muster {
namespace {

std::optional<FloatMatrix> matrix_of(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.dim() != 2 || tensor.scalar_type() != at::kFloat || !tensor.is_cpu() ||
      tensor.layout() != at::kStrided || tensor.is_neg()) {
    return std::nullopt;
  }
  return FloatMatrix{tensor.const_data_ptr<float>(), tensor.size(0), tensor.size(1), tensor.stride(0),
                     tensor.stride(1)};
}

bool fit(const std::optional<FloatMatrix>& a, const std::optional<FloatMatrix>& b) {
  return a && b && a->columns == b->rows && multiplies_floats(*a, *b);
}

FloatMatrix transposed(const FloatMatrix& m) { return {m.data, m.columns, m.rows, m.column_stride, m.row_stride}; }

bool is_one(const c10::IValue& number) { return number.isScalar() && number.toScalar().equal(1); }

// That is added to each row.
bool is_row(const at::Tensor& tensor, int64_t columns) {
  return tensor.defined() && tensor.dim() == 1 && tensor.size(0) == columns && tensor.is_contiguous() &&
         tensor.scalar_type() == at::kFloat && tensor.is_cpu() && !tensor.is_neg();
}

}  // namespace

bool multiply_here(int second_factor, std::vector<c10::IValue>& stack) {
  const std::optional<FloatMatrix> a = matrix_of(stack[second_factor - 1].toTensor());
  const std::optional<FloatMatrix> b = matrix_of(stack[second_factor].toTensor());
  if (!fit(a, b)) return false;
  const bool sum = second_factor == 2;
  if (sum && !(is_row(stack[0].toTensor(), b->columns) && is_one(stack[3]) && is_one(stack[4]))) return false;
  at::Tensor product = at::detail::empty_cpu({a->rows, b->columns}, at::kFloat);
  float* result = product.mutable_data_ptr<float>();
  if (sum) {
    const float* row = stack[0].toTensor().const_data_ptr<float>();
    for (int64_t i = 0; i < a->rows; ++i) std::copy_n(row, b->columns, result + i * b->columns);
  }
  multiply_floats(*a, *b, result, b->columns, /*alpha=*/1, /*add=*/sum);
  stack.clear();
  stack.emplace_back(std::move(product));
  return true;
}

bool adds_here(const at::Tensor& target, const at::Tensor& first, const at::Tensor& second) {
  const std::optional<FloatMatrix> sum = matrix_of(target), a = matrix_of(first), b = matrix_of(second);
  if (!sum || !fit(a, b) || sum->rows != a->rows || sum->columns != b->columns) return false;
  const bool smaller = a->columns * (a->rows + b->columns) <= a->rows * b->columns;
  return smaller && sum->column_stride == 1 && RowTable::of(target) == nullptr;
}

void add_product(const at::Tensor& target, const at::Tensor& first, const at::Tensor& second, double alpha) {
  multiply_floats(*matrix_of(first), *matrix_of(second), target.mutable_data_ptr<float>(), target.stride(0),
                  static_cast<float>(alpha), /*add=*/true);
}

void multiply_into_columns(std::vector<c10::IValue>& stack) {
  const at::Tensor a = stack[0].toTensor(), b = stack[1].toTensor();
  at::Tensor product = at::empty_strided({a.size(0), b.size(1)}, {1, a.size(0)}, a.options());
  const std::optional<FloatMatrix> first = matrix_of(a), second = matrix_of(b);
  if (fit(first, second)) {
    multiply_floats(transposed(*second), transposed(*first), product.mutable_data_ptr<float>(), a.size(0), 1, false);
  } else {
    at::mm_out(product, a, b);
  }
  stack.assign({std::move(product)});
}

}  // namespace muster
