// Columns for tests, and what is in them as text.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "muster/base/strings.h"
#include "muster/data/column.h"

namespace muster {

inline Column strings(const std::vector<std::string_view>& values, std::vector<int64_t> sizes = {}) {
  Strings strings;
  for (const std::string_view value : values) strings.append(value);
  if (!sizes.empty()) strings.shape(std::move(sizes));
  return strings;
}

inline at::Tensor int_tensor(const std::vector<int64_t>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions(at::kLong));
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}
inline at::Tensor int_number(int64_t value) { return int_tensor({value}).reshape(at::IntArrayRef()); }

inline at::Tensor float_tensor(const std::vector<float>& values) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions(at::kFloat));
  std::copy(values.begin(), values.end(), tensor.mutable_data_ptr<float>());
  return tensor;
}

// "int64[2] 3 4", "string[1] \"a\"".
inline std::string content(const Column& column) {
  std::string words = column.to_string();
  if (column.holds_strings()) {
    for (size_t i = 0; i < column.strings().count(); ++i) str_append(words, " \"", column.strings()[i], "\"");
    return words;
  }
  const at::Tensor tensor = column.tensor().contiguous();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    if (tensor.scalar_type() == at::kFloat) {
      str_append(words, " ", tensor.const_data_ptr<float>()[i]);
    } else {
      str_append(words, " ", tensor.const_data_ptr<int64_t>()[i]);
    }
  }
  return words;
}

}  // namespace muster
