// Rows of variables: read and written without moving the rest. For use inside traced functions; slice() and row() also
// outside.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "muster/trace/variable.h"

namespace muster {

// table[ids], of shape ids.sizes() + the shape of a row: each row that is asked for travels once, however often it is
// asked for, and the table never does. An id below 0 stands for no row: it gives zeros and has no gradient; one that is
// too large is Error{kOutOfRange} when the function runs. Differentiable, by gradient() and gradients_by_rows(): the
// result is a leaf of autograd, at which the gradients of the table's rows end.
at::Tensor lookup(const Variable& table, const at::Tensor& ids);

// Some rows of a variable, as Python's variable[first:end:step] means it: what is below 0 counts from the end, and a
// negative step goes backwards.
struct RowRange {
  std::optional<int64_t> first{}, end{};
  int64_t step = 1;
};
// Reads the parts that have such rows and no others. Throws Error{kInvalidArgument} for step 0 and for a scalar.
at::Tensor slice(const Variable& variable, const RowRange& range);
// variable[index], without the first dimension. Throws Error{kOutOfRange}.
at::Tensor row(const Variable& variable, int64_t index);

// The gradient of a loss by the rows that were looked up: for every part of the table the different rows (ids from the
// part's first row) and the sum of their gradients.
struct RowGradient {
  Variable table;
  std::vector<at::Tensor> ids{};
  std::vector<at::Tensor> rows{};
};

// As a tensor of the table's shape: the rows, and zeros or `more` elsewhere.
at::Tensor as_dense(const RowGradient& gradient, const at::Tensor& more = {});

// A variable has a gradient of one kind, or none at all if the loss does not depend on it.
struct Gradients {
  std::vector<at::Tensor> dense{};  // as the variables; undefined where there is none, or one by rows
  std::vector<RowGradient> rows{};  // of tables that the loss depends on by rows alone

  const RowGradient* rows_of(const Variable& table) const;  // null if there are none
};

// d (weight * loss) / d variables. A table whose rows were looked up in this function has a gradient by rows, unless
// the loss depends on it as a whole, too. Throws as gradient().
Gradients gradients_by_rows(const at::Tensor& loss, const std::vector<Variable>& variables, double weight = 1);

// What is done with rows[ids], one after the other where an id is there twice.
enum class Scatter { kAdd, kSub, kMul, kDiv, kMin, kMax, kUpdate };
// `updates` has one row for each id. Throws Error{kInvalidArgument} if it has not.
void scatter(const Variable& variable, Scatter how, const at::Tensor& ids, const at::Tensor& updates);

// Rows of rows: the dimensions of `ids` but the last are the first ones of the variable, and within them
// variable[…, ids[…, i]] becomes updates[…, i]. With one dimension it is Scatter::kUpdate. Throws
// Error{kInvalidArgument} for shapes that do not fit.
void batch_scatter_update(const Variable& variable, const at::Tensor& ids, const at::Tensor& updates);

}  // namespace muster
