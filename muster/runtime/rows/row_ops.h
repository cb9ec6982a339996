// Ops on the rows of tables, which libtorch has not: registered with its dispatcher as muster_rows::…, and called
// through it, so that they are traced and run like its own. Ids are int64, rows are contiguous, and a table may be kept
// in several parts.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <tuple>
#include <vector>

namespace muster::rows {

// The different ids, grouped by the part of the table that has them and counted from that part's first row, and for
// each id where its row is in the parts' rows one after another (int32). `starts` has the first row of each part and,
// at the end, the number of all rows. An id below 0 stands for no row: its place is -1. Throws Error{kOutOfRange} for
// one that is too large.
std::tuple<at::Tensor, std::vector<at::Tensor>> unique(const at::Tensor& ids, at::IntArrayRef starts);

// As `unique`, but every id stays, in its order: for each part its ids and where they were in `ids`.
std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> route(const at::Tensor& ids, at::IntArrayRef starts);

// table[ids]. Throws Error{kOutOfRange}.
at::Tensor gather(const at::Tensor& table, const at::Tensor& ids);

// One row for each place: what `unique` took apart, put together again. Zeros for place -1.
at::Tensor expand(const at::Tensor& places, at::TensorList rows);

// The sum of the gradients of each different row: the other way round. `ids` says how many rows a part has.
std::vector<at::Tensor> sum(const at::Tensor& gradient, const at::Tensor& places, at::TensorList ids);

// Updates of the rows `ids`, which are different from each other. `rate` is one number.
void add_(at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows, double scale);
void adagrad_(at::Tensor& table, at::Tensor& sums, const at::Tensor& ids, const at::Tensor& gradient,
              const at::Tensor& rate, double epsilon);
void adam_(at::Tensor& table, at::Tensor& mean, at::Tensor& variance, const at::Tensor& step, const at::Tensor& ids,
           const at::Tensor& gradient, const at::Tensor& rate, double beta1, double beta2, double epsilon,
           double decay);

// Gives the table new rows that look as the rule (RowRule, in row_table.h) says and are made when they are first
// written.
void on_demand_(at::Tensor& table, int64_t kind, double a, double b, int64_t seed, int64_t first_row);

// Changes the rows `ids`, one after the other where an id is there twice. `how` is add, sub, mul, div, min, max or
// update.
void scatter_(at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows, std::string_view how);

}  // namespace muster::rows
