// The element types of tensors, with libtorch's numbers, so that a program can be read and checked without libtorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace muster {

enum class DType : uint8_t {
  kByte = 0,
  kChar = 1,
  kShort = 2,
  kInt = 3,
  kLong = 4,
  kHalf = 5,
  kFloat = 6,
  kDouble = 7,
  kComplexHalf = 8,
  kComplexFloat = 9,
  kComplexDouble = 10,
  kBool = 11,
  kBFloat16 = 15,
};

// Nothing for a number that is no element type of ours (quantized and 8-bit float types, garbage).
std::optional<DType> dtype_from_number(int64_t number);
std::string_view name_of(DType dtype);
int64_t bytes_per_element(DType dtype);

}  // namespace muster
