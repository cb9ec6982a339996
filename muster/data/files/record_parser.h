// What is in the records of files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "muster/data/column.h"

namespace muster {

// Immutable, thread-safe.
class RecordParser {
 public:
  virtual ~RecordParser() = default;
  virtual std::vector<std::string> names() const = 0;  // of the columns
  // Whether a column has a row for each record; else the values of all are after each other.
  virtual bool has_rows([[maybe_unused]] size_t column) const { return true; }
  // A batch of records: each column has their number as its first dimension. Throws Error{kInvalidArgument} or
  // {kDataLoss} that says which record is wrong, by its origin, and puts its number into `wrong`, if that is given.
  virtual Columns parse(const Strings& records, std::optional<size_t>* wrong = nullptr) const = 0;
};

}  // namespace muster
