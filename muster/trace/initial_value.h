#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "muster/graph/program.h"
#include "muster/runtime/rows/row_table.h"

namespace muster {

// What a variable begins with: a tensor, or a shape and a rule by which the task that holds the variable fills it, so
// that a table larger than this machine's memory needs none of it. A value.
class InitialValue {
 public:
  InitialValue(const at::Tensor& value);  // NOLINT: a tensor is what most variables begin with

  static InitialValue constant(std::vector<int64_t> sizes, double value, at::ScalarType dtype = at::kFloat);
  // Without a seed, one is drawn from libtorch's own generator: each value is another one, and all are the same again
  // after torch::manual_seed. With the same seed and shape, values are equal.
  static InitialValue uniform(std::vector<int64_t> sizes, double low, double high, std::optional<uint64_t> seed = {});
  static InitialValue normal(std::vector<int64_t> sizes, double mean, double deviation,
                             std::optional<uint64_t> seed = {});
  // `make(sizes, offset)` makes the rows [offset[0], offset[0] + sizes[0]) here, part by part, for a variable that is
  // kept in parts.
  using MakePart = std::function<at::Tensor(const std::vector<int64_t>& sizes, const std::vector<int64_t>& offset)>;
  static InitialValue by_parts(std::vector<int64_t> sizes, MakePart make, at::ScalarType dtype = at::kFloat);

  // The same, drawn row by row when a row is first written; until then a row takes no memory, here or there, and looks
  // as it will. For tables of which only some rows are ever used. Throws Error{kInvalidArgument} for a value without a
  // rule and for a scalar. Limit: a table on a GPU is filled at once, and so is one that is read as a whole.
  InitialValue on_demand() const;
  bool rows_on_demand() const { return on_demand_; }

  const TensorSpec& spec() const { return spec_; }
  // Rows [first, first + count).
  InitialValue rows(int64_t first, int64_t count) const;
  // The value, made here.
  at::Tensor tensor() const;

  // How a task fills the variable; nothing if the value has to be sent.
  using Fill = RowRule;
  const std::optional<Fill>& fill() const { return fill_; }

 private:
  explicit InitialValue(TensorSpec spec) : spec_(std::move(spec)) {}

  TensorSpec spec_;
  at::Tensor value_{};
  std::optional<Fill> fill_{};
  MakePart make_{};
  int64_t first_row_ = 0;
  bool on_demand_ = false;
};

}  // namespace muster
