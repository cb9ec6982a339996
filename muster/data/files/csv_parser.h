// Lines of comma-separated values, which become columns: a tensor per column of numbers, strings per column of words.
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

struct CsvColumn {
  enum class Type { kFloat, kDouble, kInt32, kInt64, kString };

  std::string name;
  Type type;
  // What a field that is empty, or is CsvFormat::na_value, stands for. Without: such a field is an error. A column of
  // floats takes either number, one of integers an int64_t, one of strings a string.
  std::optional<std::variant<double, int64_t, std::string>> otherwise{};
};

struct CsvFormat {
  std::vector<CsvColumn> columns;     // those that are wanted, in the order in which they come out
  std::vector<std::string> header{};  // the names of all fields of a line; empty: `columns` are all, in this order
  char separator = ',';
  bool quotes = true;      // as in RFC 4180: "a, ""b""" is one field. Without: a quote is a character like others.
  std::string na_value{};  // says, like nothing at all, that a value is missing
  bool guessed = false;    // the types of the columns, from the first lines: errors say so
};

// Parses batches of lines. As tf.io.decode_csv does, it takes blanks around a number, "+1", "inf" and "nan", but no
// hexadecimal numbers; a quoted field that is empty is missing, too. A number that is too small for its type is 0.
// Immutable, so any thread may parse.
class CsvParser {
 public:
  // Throws Error{kInvalidArgument} for no columns, a name twice, a wanted column that the header does not have, an
  // `otherwise` that is no value of its column, a separator that no line could have.
  explicit CsvParser(CsvFormat format);

  std::vector<std::string> names() const;  // of the columns that come out

  // A line has no line break at its end; one between quotes is part of a field. Each column has the shape [lines].
  // Throws Error{kInvalidArgument} for a line with too few or too many fields, wrong quotes, or a field that is missing
  // or no number of its type. It names the line: where(i) for lines[i], such as `file "a.csv": line 18`.
  Columns parse(std::span<const std::string_view> lines, const std::function<std::string(size_t)>& where = {}) const;

 private:
  const CsvFormat format_;
  const std::vector<size_t> places_;  // of each wanted column among the fields of a line
};

// The fields of a header line, without the byte order mark that some programs begin a file with.
// Throws Error{kInvalidArgument} for wrong quotes.
std::vector<std::string> csv_fields(std::string_view line, char separator = ',', bool quotes = true);

}  // namespace muster
