// Variables as whoever saves them reads them: piece by piece.
#pragma once

#include <cstdint>
#include <memory>

#include "muster/io/tensor_pieces.h"
#include "muster/runtime/rows/row_set.h"
#include "muster/runtime/variables/variable_store.h"

namespace muster {

// Bound: whatever is saved, kAtOnce and one piece are in memory beside the variables, and for rows on demand a bit for
// each row that the table has. A variable of up to kAtOnce is as it is at one moment, and whoever writes to it
// meanwhile makes a copy. Of a larger one each piece is, which are whole rows; whoever writes waits while one is copied
// within memory (a fraction of a millisecond), never for a disk. What it gives is used one after the other, by one
// thread at a time. It may outlive this.
class VariablePieces {
 public:
  static constexpr int64_t kAtOnce = 8 << 20;
  static constexpr int64_t kPieceBytes = 1 << 20;  // or one row, if that is larger

  VariablePieces();
  // All of a variable.
  TensorPieces all(std::shared_ptr<VariableCell> cell) const;
  // These rows of a table, and their numbers, counted from `first_row` on.
  TensorPieces rows(std::shared_ptr<VariableCell> cell, std::shared_ptr<const RowSet> set) const;
  TensorPieces numbers(std::shared_ptr<const RowSet> set, int64_t first_row) const;

 private:
  struct Current;
  const std::shared_ptr<Current> current_;
};

// Holds a variable while it is looked at, by rows or as a whole, so that nobody copies it meanwhile; does not let
// writers that wait go first, of whom there may always be one.
class BriefRead {
 public:
  BriefRead(VariableCell& cell, bool by_rows) : cell_(cell), value(cell.begin_brief_read(by_rows)) {}
  ~BriefRead() {
    value.reset();  // first, or who writes next would take it for one that somebody keeps, and copy it
    cell_.end_read();
  }
  BriefRead(const BriefRead&) = delete;
  BriefRead& operator=(const BriefRead&) = delete;

 private:
  VariableCell& cell_;

 public:
  at::Tensor value;
};

// The rows of a table on demand that were written: all of one that is complete by now.
std::shared_ptr<const RowSet> written_rows(VariableCell& cell);

}  // namespace muster
