// Looks at integers wherever they are.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <cstdint>
#include <limits>

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

// Stands among numbers of rows or classes for one that is no whole number: below 0, and no such number.
inline constexpr int64_t kNoWholeNumber = -0x7fff'ffff;

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
