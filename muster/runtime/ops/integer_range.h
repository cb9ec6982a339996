// Looks at integers wherever they are.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>

namespace muster {

// Calls `visit(int64_t)` for each element of a list or tensor of ints, or the one int; not for tensors elsewhere.
template <class Visit>
void for_each_integer(const c10::IValue& value, const Visit& visit) {
  if (value.isInt()) {
    visit(value.toInt());
  } else if (value.isIntList()) {
    for (int64_t element : value.toIntVector()) visit(element);
  } else if (value.isTensor() && value.toTensor().is_cpu() &&
             at::isIntegralType(value.toTensor().scalar_type(), true)) {
    const at::Tensor elements = value.toTensor().contiguous();
    if (elements.scalar_type() == at::kLong) {
      const int64_t* data = elements.const_data_ptr<int64_t>();
      for (int64_t i = 0; i < elements.numel(); ++i) visit(data[i]);
    } else {
      const at::Tensor wide = elements.to(at::kLong);
      const int64_t* data = wide.const_data_ptr<int64_t>();
      for (int64_t i = 0; i < wide.numel(); ++i) visit(data[i]);
    }
  }
}

// Among numbers of rows or classes this, with the bits of a float added, stands for a number that is none, such as 0.83
// or NaN: errors have it as it was given. All of them are below 0.
inline constexpr int64_t kNoIndex = -(int64_t{1} << 62);

// The number that stands there; nothing for an index.
inline std::optional<float> number_in_place_of(int64_t index) {
  using Bits = std::numeric_limits<int32_t>;
  if (index < kNoIndex + Bits::min() || index > kNoIndex + Bits::max()) return std::nullopt;
  return std::bit_cast<float>(static_cast<int32_t>(index - kNoIndex));
}

// From the least to the most of some integers; of none, the least is above the most.
struct IntegerRange {
  int64_t least = std::numeric_limits<int64_t>::max(), most = std::numeric_limits<int64_t>::min();

  IntegerRange with(const IntegerRange& other) const {
    return {std::min(least, other.least), std::max(most, other.most)};
  }
};

// Of the elements of a tensor or list of ints, or the one int. Of a tensor elsewhere, too, which waits for its device.
IntegerRange range_of(const c10::IValue& value);

}  // namespace muster
