// Rows of variables: read and written without moving the rest. For use inside traced functions.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "muster/trace/variable.h"

namespace muster {

// table[ids], of shape ids.sizes() + the shape of a row: each row that is asked for travels once, however often it is
// asked for, and the table never does. An id below 0 stands for no row: it gives zeros and has no gradient; one that is
// too large is Error{kOutOfRange} when the function runs. The result is a leaf: gradients end here, and row_gradients()
// has them.
at::Tensor lookup(const Variable& table, const at::Tensor& ids);

// The gradient of a loss by the rows that were looked up: for every part of the table the different rows (ids from the
// part's first row) and the sum of their gradients.
struct RowGradient {
  Variable table;
  std::vector<at::Tensor> ids;
  std::vector<at::Tensor> rows;
};

struct Gradients {
  std::vector<at::Tensor> dense{};  // as the variables; undefined for a table that was looked up
  std::vector<RowGradient> rows{};  // of those
};

// d loss / d variables, where tables that were looked up in this function have gradients by rows. Throws as gradient().
Gradients gradients_by_rows(const at::Tensor& loss, const std::vector<Variable>& variables);

// What is done with rows[ids], one after the other where an id is there twice.
enum class Scatter { kAdd, kSub, kMul, kDiv, kMin, kMax, kUpdate };
// `updates` has one row for each id. Throws Error{kInvalidArgument} if it has not.
void scatter(const Variable& variable, Scatter how, const at::Tensor& ids, const at::Tensor& updates);

// Rows of rows: the dimensions of `ids` but the last are the first ones of the variable, and within them
// variable[…, ids[…, i]] becomes updates[…, i]. With one dimension it is Scatter::kUpdate. Throws
// Error{kInvalidArgument} for shapes that do not fit.
void batch_scatter_update(const Variable& variable, const at::Tensor& ids, const at::Tensor& updates);

}  // namespace muster
