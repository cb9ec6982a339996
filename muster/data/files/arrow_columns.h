// Arrow's arrays as columns of rows that are to be packed. Only of builds with Apache Arrow.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/data/files/packed_rows.h"

namespace arrow {
class Array;
class DataType;
}  // namespace arrow

namespace muster {

// A value of a column that no row may have.
struct WrongValue {
  int64_t number;  // among the values
  const char* why;
};

// Numbers in the type of their field: where Arrow has them, or converted.
struct ArrowNumbers {
  const char* at = nullptr;
  std::vector<char> own{};
  std::vector<WrongValue> wrong{};
};

// What some rows have of a column.
struct DecodedColumn {
  std::shared_ptr<arrow::Array> array{};  // that the others look into
  ArrowNumbers numbers{};                 // of fields that are as long in every row
  std::vector<std::string_view> views{};  // of others: the bytes of each row
  std::map<size_t, const char*> wrong{};  // rows, and what is wrong with them
};

// How a column of this type is packed, if it can be.
std::optional<PackedField> packed_field(const std::string& name, const arrow::DataType& type);

// REQUIRES: `field` is how its type is packed, and outlives the result. Throws Error{kDataLoss} for offsets that point
// outside of it, which Arrow has taken from the file as they were.
DecodedColumn decoded_column(std::shared_ptr<arrow::Array> array, const PackedField& field);

}  // namespace muster
