// That programs are the same with and without values is held for every layer and op by replay_test.h.
#include "muster/trace/tracer/unneeded_values.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/runtime/executor/step_ops.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/trace/function.h"
#include "muster/trace/tracer/trace.h"

namespace muster::unneeded_values_test {
namespace {

TEST(UnneededValues, AStepOfALargeNetIsTracedWithoutItsProducts) {
  constexpr int64_t kWide = 1 << 15;  // a product of two takes 2^46 operations
  int calls = 0;
  const at::Tensor row = torch::ones({1, kWide});
  auto multiply = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    ++calls;
    const at::Tensor wide = in[0].expand({kWide, kWide});
    return {wide.mm(wide).relu_().mm(wide.t()).sum()};
  };
  const TracedProgram traced = trace(multiply, {row}, {});
  EXPECT_EQ(calls, 1);
  EXPECT_GE(traced.program.instructions.size(), 5u);
}

TEST(UnneededValues, LayersThatLibtorchHasNoShapesForTakeNoMemory) {
  constexpr int64_t kWide = 1 << 18;  // a product has 256 GiB, which nobody has
  auto layers = [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const at::Tensor wide = in[0].expand({kWide, kWide});
    const at::Tensor weight = in[0].view({kWide}).detach().requires_grad_();
    const at::Tensor normal = torch::layer_norm(wide.mm(wide).relu(), {kWide}, weight, weight);
    return torch::autograd::grad({normal.relu_().sum()}, {weight});
  };
  EXPECT_GE(trace(layers, {torch::ones({1, kWide})}, {}).program.instructions.size(), 8u);
}

TEST(UnneededValues, AStepOfAnOptimizerTouchesNoMemory) {
  constexpr int64_t kWide = 1 << 13;  // a product has 256 MiB
  int64_t touched = 0;
  auto step = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const at::Tensor wide = in[0].expand({kWide, kWide});
    at::Tensor value = wide.mm(wide), mean = wide.mm(wide), variance = wide.mm(wide), steps = torch::zeros({1});
    const at::Tensor gradient = wide.mm(wide), rate = torch::full({}, 0.1, torch::kDouble);
    const int64_t before = resident_memory();
    step_ops::momentum_(value, gradient, mean, rate, {.factor = 0.9, .decay = 0.1, .nesterov = true});
    step_ops::adam_(value, gradient, mean, variance, steps, rate,
                    {.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .decay = 0.1, .decoupled = false});
    touched = resident_memory() - before;
    return {value.sum()};
  };

  const TracedProgram traced = trace(step, {torch::ones({1, kWide})}, {});

  EXPECT_LT(touched, 64 << 20);
  EXPECT_GE(traced.program.instructions.size(), 6u);
}

TEST(UnneededValues, AFunctionThatReadsAValueGetsTheTrueOne) {
  const at::Tensor many = torch::ones({1 << 18});
  float read = 0;
  auto sum = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const at::Tensor doubled = in[0] * 2;
    read = doubled.sum().item<float>();
    return {doubled};
  };
  trace(sum, {many}, {});
  EXPECT_EQ(read, 2 << 18);
}

TEST(UnneededValues, WhatAFunctionLeavesOutsideHasItsValue) {
  at::Tensor kept;
  auto keep = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    kept = (in[0] * 2).sum();
    return {kept.clone()};
  };
  const TracedProgram traced = trace(keep, {torch::ones({1 << 18})}, {});
  EXPECT_NE(traced.kept_outside, "");
  EXPECT_EQ(kept.item<float>(), 2 << 18);
}

TEST(UnneededValues, ConstantsAreComputed) {
  auto add = [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const at::Tensor ramp = torch::arange(1 << 18) * 2;
    return {in[0] + (ramp.max().item<int64_t>() > 3 ? 1 : 2)};
  };
  int64_t reads = 0;
  const TracedProgram traced = trace(add, {torch::zeros({1 << 18})}, {});
  for (const Instruction& instruction : traced.program.instructions) {
    for (const auto& argument : instruction.arguments) {
      reads += std::holds_alternative<int64_t>(argument.value) && std::get<int64_t>(argument.value) == 1;
    }
  }
  EXPECT_GT(reads, 0);
}

TEST(UnneededValues, AnOpThatRefusesZerosGetsTheTrueValues) {
  const auto invert_a_corner = [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    return {torch::linalg_inv(in[0].mm(in[0]).narrow(0, 0, 4).narrow(1, 0, 4))};
  };
  EXPECT_NO_THROW(trace(invert_a_corner, {torch::eye(300)}, {}));
  EXPECT_THROW(trace(invert_a_corner, {torch::zeros({300, 300})}, {}), std::exception);
}

TEST(UnneededValues, AWrongShapeIsRefusedAsByTheOp) {
  auto multiply = [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> { return {in[0].mm(in[0])}; };
  try {
    trace(multiply, {torch::ones({300, 400})}, {});
    FAIL() << "was traced";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("300x400"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace muster::unneeded_values_test
