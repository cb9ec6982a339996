// The variables of one task. They outlive programs and sessions.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/cancellation.h"
#include "muster/graph/program.h"
#include "muster/runtime/rows/changed_rows.h"

namespace muster {

// How a matrix lies in memory. One in columns has strides {1, number of rows}.
enum class MatrixOrder : int8_t { kRows, kColumns, kEither };

// One variable: a tensor that programs read and write.
// A reader takes a reference and never blocks a writer; a writer works in place when nobody holds a reference and on a
// copy otherwise, so that what a reader holds never changes. A run that writes has the variable to itself until it
// ends: nobody sees half an update. Thread-safe. Whoever needs several cells at once takes them in the order of `id()`,
// and waits for nothing else until it has given them back. Whoever waits for a cell stops when its call is cancelled,
// and throws why.
class VariableCell {
 public:
  VariableCell(std::string name, TensorSpec spec, at::Device device);

  const std::string& name() const { return name_; }
  const TensorSpec& spec() const { return spec_; }
  at::Device device() const { return device_; }
  uint64_t id() const { return id_; }
  bool initialized() const ABSL_LOCKS_EXCLUDED(mu_);
  uint64_t version() const ABSL_LOCKS_EXCLUDED(mu_);  // counts the writes
  int waiting_writers() const ABSL_LOCKS_EXCLUDED(mu_);

  bool shares_memory_with(const at::Tensor& tensor) const ABSL_LOCKS_EXCLUDED(mu_);

  uint64_t whole_reads() const { return whole_reads_.load(std::memory_order_relaxed); }
  void count_whole_read() { whole_reads_.fetch_add(1, std::memory_order_relaxed); }

  // Whoever says `by_rows` looks at a table with row ops alone (row_ops.h). For others, rows that are made on demand
  // (row_table.h) are made now, all of them.
  // Everybody gets the usual order of memory, rows, except for those who say that columns will do (kEither) or are
  // better (kColumns; it may still get rows). The variable is turned when it is asked for in an order that it does not
  // have, but one that is turned back again and again before it has been worth while stays in rows.

  // The value as it is now. Waits for a writer. Throws Error{kFailedPrecondition} if there was never a value.
  at::Tensor read(bool by_rows = false, MatrixOrder order = MatrixOrder::kRows,
                  const Cancellation* cancellation = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  void assign(const at::Tensor& value) ABSL_LOCKS_EXCLUDED(mu_);
  // The same without a copy, so that it cannot fail for lack of memory: nobody else writes to `value` from now on.
  void replace(at::Tensor value) ABSL_LOCKS_EXCLUDED(mu_);

  // As `read`, but writers wait until `end_read` instead of making a copy: for a run that is short and takes parts of a
  // large variable. A writer that waits goes first.
  at::Tensor begin_read(bool by_rows = false, MatrixOrder order = MatrixOrder::kRows,
                        const Cancellation* cancellation = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  void end_read() ABSL_LOCKS_EXCLUDED(mu_);
  // As `begin_read`, but before writers that wait, of whom there may always be one.
  at::Tensor begin_brief_read(bool by_rows) ABSL_LOCKS_EXCLUDED(mu_);

  // Waits for other writers and returns the tensor to write to. `whole` promises that every element will be written,
  // which is the only way to begin with a variable that has no value. Every call is paired with one of `end_write`.
  at::Tensor begin_write(bool whole = false, bool by_rows = false, MatrixOrder order = MatrixOrder::kRows,
                         const Cancellation* cancellation = nullptr) ABSL_LOCKS_EXCLUDED(mu_);
  // Which rows are written by row ops from now on, and whether anything else is. REQUIRES: nobody writes, and it is a
  // table on the CPU.
  std::shared_ptr<ChangedRows> changed_rows() ABSL_LOCKS_EXCLUDED(mu_);

  // `keep` false (the run failed before it wrote): the variable stays as it was, with its value or without one.
  void end_write(bool keep = true) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  bool idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !writing_; }
  bool incomplete() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool readable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !writing_ && waiting_writers_ == 0; }
  bool writable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !writing_ && readers_ == 0; }
  using Free = bool (VariableCell::*)() const;
  // Returns when the cell is free in that sense; throws when the call is cancelled first. Lets go of `mu_` meanwhile.
  // REQUIRES: `woken` ends when `mu_` is not held, since its end waits for a callback that takes it.
  void wait_until(Free free, const Cancellation* cancellation, Cancellation::Registration& woken)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  [[noreturn]] void throw_uninitialized() const;
  // The value for somebody who reads.
  const at::Tensor& readable_value(bool by_rows, MatrixOrder order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  at::Tensor new_memory() const;
  void note_write(bool by_rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void turn(MatrixOrder order) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string name_;
  const TensorSpec spec_;
  const at::Device device_;
  const uint64_t id_;
  std::atomic<uint64_t> whole_reads_{0};

  mutable absl::Mutex mu_;
  at::Tensor value_ ABSL_GUARDED_BY(mu_);
  at::Tensor before_ ABSL_GUARDED_BY(mu_);                     // what a whole write that is under way replaces
  std::shared_ptr<ChangedRows> changed_ ABSL_GUARDED_BY(mu_);  // null: nobody asks
  bool initialized_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  int readers_ ABSL_GUARDED_BY(mu_) = 0;  // between begin_read and end_read
  int waiting_writers_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t version_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t writes_in_columns_ ABSL_GUARDED_BY(mu_) = 0;  // since it was turned to columns
  int turned_in_vain_ ABSL_GUARDED_BY(mu_) = 0;
};

// Finds cells by name. Thread-safe.
class VariableStore {
 public:
  // The cell of that name, made without a value if it is new. Throws Error{kInvalidArgument} if it exists with another
  // spec.
  std::shared_ptr<VariableCell> declare(const std::string& name, const TensorSpec& spec, at::Device device)
      ABSL_LOCKS_EXCLUDED(mu_);
  // As `declare`, but a taken name gets a number: "w", "w_1", "w_2".
  std::shared_ptr<VariableCell> declare_new(const std::string& wish, const TensorSpec& spec, at::Device device)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<VariableCell> find(const std::string& name) const ABSL_LOCKS_EXCLUDED(mu_);  // null if there is none
  // The cell whose value, or part of it, `tensor` shows; null if there is none.
  std::shared_ptr<VariableCell> owner_of(const at::Tensor& tensor) const ABSL_LOCKS_EXCLUDED(mu_);
  void erase(const std::string& name) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::shared_ptr<VariableCell>> all() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<VariableCell>> cells_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
