// The names that checkpoints keep for rows of tables which are stored with their numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace muster {

// Rows of a table, or of the part of it that begins with `first_row`: "table#rows@first_row", and their numbers in the
// whole table, which rise: "table#ids@first_row". A table whose rows are made on demand has these instead of a tensor,
// and the rule for all other rows: "table#rule@first_row". With "+1" at the end rows and numbers are the first
// difference: rows that have changed since the part was stored as a whole; "+2" is what has changed since then.
struct RowName {
  enum What { kRule, kRows, kIds };

  std::string table;
  What what;
  int64_t first_row;
  int64_t difference = 0;  // 0: none

  std::string text() const;
  // What such a name says; nothing for the name of an ordinary variable.
  static std::optional<RowName> parse(const std::string& name);
};

}  // namespace muster
