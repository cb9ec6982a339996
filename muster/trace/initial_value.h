#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "muster/graph/program.h"

namespace muster {

// What a variable begins with: a tensor, or a shape and a rule by which the task that holds the variable fills it, so
// that a table larger than this machine's memory needs none of it. A value.
class InitialValue {
 public:
  InitialValue(const at::Tensor& value);  // NOLINT: a tensor is what most variables begin with

  static InitialValue constant(std::vector<int64_t> sizes, double value, at::ScalarType dtype = at::kFloat);
  static InitialValue uniform(std::vector<int64_t> sizes, double low, double high, uint64_t seed = 0);
  static InitialValue normal(std::vector<int64_t> sizes, double mean, double deviation, uint64_t seed = 0);
  // `make(sizes, offset)` makes the rows [offset[0], offset[0] + sizes[0]) here, part by part, for a variable that is
  // kept in parts.
  using MakePart = std::function<at::Tensor(const std::vector<int64_t>& sizes, const std::vector<int64_t>& offset)>;
  static InitialValue by_parts(std::vector<int64_t> sizes, MakePart make, at::ScalarType dtype = at::kFloat);

  const TensorSpec& spec() const { return spec_; }
  // Rows [first, first + count).
  InitialValue rows(int64_t first, int64_t count) const;
  // The value, made here.
  at::Tensor tensor() const;

  // How a task fills the variable; nothing if the value has to be sent.
  struct Fill {
    enum Kind { kConstant, kUniform, kNormal } kind = kConstant;
    double a = 0, b = 0;
    uint64_t seed = 0;
  };
  const std::optional<Fill>& fill() const { return fill_; }

 private:
  explicit InitialValue(TensorSpec spec) : spec_(std::move(spec)) {}

  TensorSpec spec_;
  at::Tensor value_{};
  std::optional<Fill> fill_{};
  MakePart make_{};
  int64_t first_row_ = 0;
};

}  // namespace muster
