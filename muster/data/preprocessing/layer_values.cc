#include "muster/data/preprocessing/layer_values.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <absl/strings/str_join.h>

#include <algorithm>
#include <utility>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

bool is_whole(at::ScalarType type) {
  return type == at::kByte || type == at::kChar || type == at::kShort || type == at::kInt || type == at::kLong;
}

bool is_real(at::ScalarType type) {
  return is_whole(type) || type == at::kBool || type == at::kHalf || type == at::kBFloat16 || type == at::kFloat ||
         type == at::kDouble;
}

}  // namespace

std::string words_for(const Column& column) {
  if (column.holds_strings()) return column.to_string();
  const at::Tensor& tensor = column.tensor();
  if (!tensor.defined()) return "a tensor that is not defined";
  std::string words = str_cat(c10::toString(tensor.scalar_type()), "[", absl::StrJoin(tensor.sizes(), ", "), "]");
  if (dtype_from_number(static_cast<int64_t>(tensor.scalar_type()))) words = spec_of(tensor).to_string();
  if (!tensor.is_cpu()) str_append(words, " on ", tensor.device().str());
  if (tensor.layout() != at::kStrided) words += ", not dense";
  return words;
}

bool has_elements_here(const Column& column) {
  return !column.holds_strings() && column.tensor().defined() && column.tensor().is_cpu() &&
         column.tensor().layout() == at::kStrided;
}

const Strings& strings_in(std::string_view layer, const Column& in) {
  if (!in.holds_strings()) throw invalid_argument(layer, ": got ", words_for(in), ", expected strings");
  return in.strings();
}

at::Tensor integers_in(std::string_view layer, const Column& in, std::string_view expected) {
  if (!has_elements_here(in) || !is_whole(in.tensor().scalar_type())) {
    throw invalid_argument(layer, ": got ", words_for(in), ", expected ", expected);
  }
  PlainTensors plain;
  return in.tensor().to(at::kLong).contiguous();
}

at::Tensor floats_in(std::string_view layer, const Column& in) {
  if (!has_elements_here(in) || !is_real(in.tensor().scalar_type())) {
    throw invalid_argument(layer, ": got ", words_for(in), ", expected numbers");
  }
  PlainTensors plain;
  return in.tensor().to(at::kFloat).contiguous();
}

at::Tensor empty_indices(at::IntArrayRef sizes) {
  PlainTensors plain;
  return at::empty(sizes, at::TensorOptions(at::kLong));
}

at::Tensor empty_rows(std::string_view layer, std::vector<int64_t> sizes, int64_t depth) {
  sizes.push_back(depth);
  int64_t bytes = sizeof(float);
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) {
      throw invalid_argument(layer, ": rows of the shape [", absl::StrJoin(sizes, ", "), "] have no size in bytes");
    }
  }
  PlainTensors plain;
  return at::zeros(sizes, at::TensorOptions(at::kFloat));
}

void fill_row(OutputMode mode, const int64_t* categories, size_t count, float* row) {
  for (size_t i = 0; i < count; ++i) {
    if (categories[i] == kNoCategory) continue;
    float& place = row[categories[i]];
    place = mode == OutputMode::kCount ? place + 1 : 1;
  }
}

Column encoded(std::string_view layer, OutputMode mode, int64_t depth, const at::Tensor& categories) {
  if (mode == OutputMode::kInt) return categories;
  std::vector<int64_t> sizes = categories.sizes().vec();
  const int64_t* next = categories.const_data_ptr<int64_t>();
  const bool each = mode == OutputMode::kOneHot;
  size_t per_row = 1;
  if (each ? sizes.size() > 1 && sizes.back() == 1 : !sizes.empty()) {
    if (!each) per_row = static_cast<size_t>(sizes.back());
    sizes.pop_back();
  }
  at::Tensor rows = empty_rows(layer, std::move(sizes), depth);
  float* row = rows.mutable_data_ptr<float>();
  for (int64_t left = depth == 0 ? 0 : rows.numel() / depth; left > 0; --left, next += per_row, row += depth) {
    fill_row(mode, next, per_row, row);
  }
  return rows;
}

}  // namespace muster
