// Replays traced functions, in this process and in another one, and compares them with libtorch itself, bit for bit.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/base/test_errors.h"

namespace muster {

using testing_support::error_of;

using Tensors = std::vector<at::Tensor>;

// A function on tensors and the module whose parameters and buffers it uses.
struct Subject {
  std::shared_ptr<torch::nn::Module> module;
  std::function<Tensors(const Tensors& inputs)> step;
};

// Calls `make` twice, with the same random numbers, and runs three steps of each: one as libtorch does, the other
// traced, in this process and, as bytes, in another one. Expects outputs, parameters and buffers to be the same after
// each step. `inputs` is called before each step for fresh ones. Random ops see the stream of the step on both sides.
void expect_replay_equals_eager(const std::function<Subject()>& make, const std::function<Tensors()>& inputs);

// A training step: the loss is the first result of `forward`; parameters go down its gradient. Returns the results and
// the gradients.
Subject training(std::shared_ptr<torch::nn::Module> module, std::function<Tensors(const Tensors& inputs)> forward);
template <class Contained>
Subject training(const torch::nn::ModuleHolder<Contained>& module,
                 std::function<Tensors(const Tensors& inputs)> forward) {
  return training(std::static_pointer_cast<torch::nn::Module>(module.ptr()), std::move(forward));
}

// A function without variables.
Subject plain(std::function<Tensors(const Tensors& inputs)> function);

// Tensors that are the parameters and buffers of a module.
class Holder : public torch::nn::Module {
 public:
  at::Tensor parameter(const std::string& name, const at::Tensor& value) { return register_parameter(name, value); }
  at::Tensor buffer(const std::string& name, const at::Tensor& value) { return register_buffer(name, value); }
};

// As ::testing::AssertionResult, so that a failure says which tensor differs where.
::testing::AssertionResult same_bits(const at::Tensor& expected, const at::Tensor& got);
::testing::AssertionResult same_bits(const Tensors& expected, const Tensors& got);

// The program that this binary becomes when it is started to replay for its parent.
int replay_for_parent();
inline constexpr const char* kReplayerVariable = "MUSTER_TEST_REPLAYER";

}  // namespace muster
