// Tables whose rows get their initial values when they are first written.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "muster/graph/program.h"

namespace muster {

class ChangedRows;

// What rows look like before anybody writes to them. On demand, each number depends on the rule and on its place in the
// table alone, so that a row is the same whoever makes it, whenever, in however many parts the table is kept.
struct RowRule {
  enum Kind { kConstant, kUniform, kNormal } kind = kConstant;
  double a = 0, b = 0;  // the constant; from, to; mean, deviation
  uint64_t seed = 0;
  int64_t first_row = 0;  // on demand: of the part of a table for which this is
};

// The memory of a table by rows on demand: addresses, which become memory where a row is written, and a note of which
// rows were. It hangs at the storage of an ordinary tensor, whose elements are right only in those rows: row_ops.h
// knows that, libtorch does not, and so VariableCell completes a table before anybody else sees it.
// As thread-safe as the elements of a tensor.
class RowTable {
 public:
  // Zeros that take no memory until they are written.
  static at::Tensor zeros(const TensorSpec& spec);

  // Gives `tensor` new memory of which no row is written. Throws Error{kInvalidArgument} unless it is on the CPU,
  // contiguous, the whole of its storage, and has rows with elements.
  static void begin(const at::Tensor& tensor, const RowRule& rule);
  // Null if the tensor is an ordinary one.
  static RowTable* of(const at::Tensor& tensor);
  // Another one with the same rows written. REQUIRES: of(tensor).
  static at::Tensor copy(const at::Tensor& tensor);
  // The same elements as an ordinary tensor.
  static at::Tensor completed(const at::Tensor& tensor);

  // Whether the tensor, whose memory this is, shows all rows as they are. What is not the whole must not be looked at
  // by rows: their numbers would be others.
  bool is_whole(const at::Tensor& tensor) const;
  const RowRule& rule() const { return rule_; }
  bool written(int64_t row) const { return written_[row] != 0; }
  void initial(int64_t row, void* to) const;  // what it looks like if it is not written
  void write(int64_t row);                    // gives it its initial value, if it is not written
  std::vector<int64_t> written_rows() const;

  // Where the rows that are written are noted (changed_rows.h); null: nowhere. A copy has none.
  const std::shared_ptr<ChangedRows>& changed() const { return changed_; }
  void set_changed(std::shared_ptr<ChangedRows> changed) { changed_ = std::move(changed); }

  ~RowTable();
  RowTable(const RowTable&) = delete;
  RowTable& operator=(const RowTable&) = delete;

 private:
  RowTable(const at::Tensor& like, const RowRule& rule);
  static void destroy(void* table);

  const RowRule rule_;
  const at::ScalarType type_;
  const int64_t rows_, width_;  // of the table, elements of a row
  const size_t row_bytes_;
  char* memory_ = nullptr;
  uint8_t* written_ = nullptr;
  std::shared_ptr<ChangedRows> changed_;
};

}  // namespace muster
