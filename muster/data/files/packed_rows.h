// Rows of files that hold whole columns, on their way through steps that take records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "muster/data/column.h"

namespace muster {

// What a row has of a column.
struct PackedField {
  enum class Type { kBool, kUint8, kInt8, kInt16, kInt32, kInt64, kHalf, kFloat, kDouble, kString };
  // Of times and dates, whose numbers mean nothing beside those of another unit.
  enum class Unit { kNone, kDays, kSeconds, kMilliseconds, kMicroseconds, kNanoseconds };

  std::string name;
  Type type;
  std::vector<int64_t> sizes{};  // of what a row has; none: it is one value
  bool varies = false;           // a row has any number of values, in one dimension
  Unit unit = Unit::kNone;
  // What a value that is missing stands for, as in ParquetColumn.
  std::optional<std::variant<double, int64_t, std::string>> otherwise{};

  size_t value_bytes() const;                    // of a number
  std::string otherwise_bytes() const;           // as it is in a row. REQUIRES: otherwise, and PackedRows has taken it
  std::string to_string() const;                 // "float32[2, 3]", "int64 of ms"
  bool is_like(const PackedField& other) const;  // but for `otherwise`
  bool has_length() const { return varies || type == Type::kString; }  // it is not as long in every row
};

// A row is one piece of memory, so that it goes through a shuffle as a record does, in a fraction of what a tensor for
// each of its fields would take. First the fields that are as long in every row, then the others, each after the number
// of its bytes; both in their order. Numbers are as they are in memory, a bool is a byte.
// Immutable, so any thread may use it.
class PackedRows {
 public:
  using Length = uint32_t;

  // Throws Error{kInvalidArgument} for no fields, a name twice, sizes that no row could have, an `otherwise` that is no
  // value of its field.
  explicit PackedRows(std::vector<PackedField> fields);

  const std::vector<PackedField>& fields() const { return fields_; }
  std::vector<std::string> names() const;
  size_t fixed_bytes() const { return fixed_bytes_; }          // that every row has at its beginning
  size_t place(size_t field) const { return places_[field]; }  // of a field in them. REQUIRES: !has_length()
  size_t bytes(size_t field) const { return bytes_[field]; }   // and how many they are

  // Numbers that lie after each other, as a column. REQUIRES: !has_length().
  at::Tensor tensor(size_t field, const char* values, size_t rows) const;

  // Each column has a row for each of them. Throws Error{kInvalidArgument} for rows that are not as long in a column of
  // lists, and Error{kDataLoss} for bytes that are no row. It names the row: where(i) for rows[i].
  Columns parse(std::span<const std::string_view> rows, const std::function<std::string(size_t)>& where = {}) const;

 private:
  const std::vector<PackedField> fields_;
  std::vector<size_t> places_, bytes_;
  size_t fixed_bytes_ = 0;
};

}  // namespace muster
