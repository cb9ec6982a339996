#include "muster/graph/dtype.h"

#include <array>

namespace muster {
namespace {

struct Entry {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};

constexpr std::array kEntries = {
    Entry{DType::kByte, "uint8", 1},
    Entry{DType::kChar, "int8", 1},
    Entry{DType::kShort, "int16", 2},
    Entry{DType::kInt, "int32", 4},
    Entry{DType::kLong, "int64", 8},
    Entry{DType::kHalf, "float16", 2},
    Entry{DType::kFloat, "float32", 4},
    Entry{DType::kDouble, "float64", 8},
    Entry{DType::kComplexHalf, "complex32", 4},
    Entry{DType::kComplexFloat, "complex64", 8},
    Entry{DType::kComplexDouble, "complex128", 16},
    Entry{DType::kBool, "bool", 1},
    Entry{DType::kBFloat16, "bfloat16", 2},
};

const Entry& entry(DType dtype) {
  for (const Entry& e : kEntries) {
    if (e.dtype == dtype) return e;
  }
  return kEntries[0];
}

}  // namespace

std::optional<DType> dtype_from_number(int64_t number) {
  for (const Entry& e : kEntries) {
    if (static_cast<int64_t>(e.dtype) == number) return e.dtype;
  }
  return std::nullopt;
}

std::string_view name_of(DType dtype) { return entry(dtype).name; }

int64_t bytes_per_element(DType dtype) { return entry(dtype).bytes; }

}  // namespace muster
