// Small random functions over tensors, for comparing what runs them. Not part of the library.
#pragma once

#include <torch/torch.h>

#include <array>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "muster/base/status.h"

namespace muster::testing_support {

using Tensors = std::vector<at::Tensor>;

// The variables of a function, however they are kept.
struct Memory {
  std::function<at::Tensor(size_t variable)> read;
  std::function<void(size_t variable, int how, const at::Tensor& value)> write;  // assign, add, subtract
  std::function<at::Tensor(const at::Tensor& loss, size_t variable)> gradient;
};

// A list of steps that any tensors can go through: operands are taken by number from a pool that every step may add to,
// and a step that does not fit its operands does nothing. So every list is a function, and stays one when steps are
// taken away. Whether a step fits depends on shapes and types alone. Every result is exact: the order in which elements
// are computed does not matter.
struct RandomProgram {
  struct Step {
    uint32_t op = 0;
    std::array<uint32_t, 4> numbers{};  // which operands, dimensions, places
    uint32_t device = 0;                // 0: none
    std::vector<RandomProgram> bodies{};
  };
  std::vector<Step> steps{};

  static RandomProgram draw(std::mt19937& random, size_t steps, int depth = 0);

  // `devices` are the scopes that the steps are in; the first is none at all.
  Tensors run(const Tensors& arguments, size_t variables, const Memory& memory,
              const std::vector<std::string>& devices) const;
  std::string to_string(const std::string& indent = "") const;
};

// Arguments that share memory now and then, and the initial values of variables.
struct RandomInputs {
  uint32_t seed = 0;
  Tensors arguments(int call) const;
  Tensors variables() const;
};

// How often each kind of step has done something so far, by name: for those who want to know that all are reached.
const std::vector<std::pair<std::string, int64_t>>& step_counts();

}  // namespace muster::testing_support
