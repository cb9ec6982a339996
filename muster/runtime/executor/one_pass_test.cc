#include "muster/runtime/executor/one_pass.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>

#include "muster/graph/checker.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/test_program.h"
#include "muster/runtime/executor/plan.h"
#include "muster/runtime/executor/step_ops.h"
#include "muster/runtime/tuning/autotuner.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster::one_pass_test {
namespace {

using step_ops::AdamRule;
using step_ops::MomentumRule;
using testing_support::Builder;
using testing_support::number;
using testing_support::ref;

at::Tensor rate_of(double rate) { return torch::tensor(rate, torch::kDouble); }

// A variable and its slots, without the number of steps.
using Memory = std::vector<at::Tensor>;

Memory copies_of(const Memory& memory) {
  Memory copies;
  for (const at::Tensor& each : memory) copies.push_back(each.clone());
  return copies;
}

bool go_with_momentum(const Memory& of, const at::Tensor& gradient, const at::Tensor& rate, const MomentumRule& rule) {
  std::vector<c10::IValue> stack{of[0], gradient, of[1], rate, rule.factor, rule.decay, rule.nesterov};
  const bool done = one_pass("muster_step::momentum_")(stack);
  EXPECT_EQ(stack.size(), done ? 1U : 7U);
  EXPECT_TRUE(!done || stack[0].toTensor().is_same(of[0]));
  return done;
}

bool go_with_adam(const Memory& of, const at::Tensor& steps, const at::Tensor& gradient, const at::Tensor& rate,
                  const AdamRule& rule) {
  std::vector<c10::IValue> stack{of[0],      gradient,   of[1],        of[2],      steps,         rate,
                                 rule.beta1, rule.beta2, rule.epsilon, rule.decay, rule.decoupled};
  const bool done = one_pass("muster_step::adam_")(stack);
  EXPECT_EQ(stack.size(), done ? 1U : 11U);
  EXPECT_TRUE(!done || stack[0].toTensor().is_same(of[0]));
  return done;
}

const std::vector<std::vector<int64_t>> kShapes{{}, {1}, {7}, {0, 3}, {33, 5}, {70'001}, {3, 4, 5, 2}};

// Takes a few steps with made-up gradients beside libtorch's own optimizer.
void expect_steps_of(const std::function<std::unique_ptr<torch::optim::Optimizer>(const at::Tensor&)>& make,
                     const std::function<void(const Memory&, const at::Tensor& gradient)>& step) {
  torch::manual_seed(2);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const std::vector<int64_t>& shape : kShapes) {
      const at::Tensor start = torch::randn(shape, type);
      at::Tensor theirs = start.clone().requires_grad_();
      const std::unique_ptr<torch::optim::Optimizer> optimizer = make(theirs);
      const Memory ours{start.clone(), torch::zeros_like(start), torch::zeros_like(start),
                        torch::zeros({1}, at::kDouble)};
      for (int i = 0; i < 4; ++i) {
        const at::Tensor gradient = torch::randn(shape, type);
        theirs.mutable_grad() = gradient.clone();
        optimizer->step();
        step(ours, gradient);
        const double near = type == at::kFloat ? 1e-5 : 1e-12;
        EXPECT_TRUE(torch::allclose(ours[0], theirs.detach(), near, near / 10))
            << type << " " << start.sizes() << " " << i;
      }
    }
  }
}

TEST(OnePass, TakesTheStepsOfLibtorchsMomentum) {
  for (const MomentumRule& rule : {MomentumRule{.factor = 0.9, .decay = 0, .nesterov = false},
                                   MomentumRule{.factor = 0.5, .decay = 0.2, .nesterov = false},
                                   MomentumRule{.factor = 0.9, .decay = 0, .nesterov = true},
                                   MomentumRule{.factor = 0.8, .decay = 0.1, .nesterov = true}}) {
    const auto options =
        torch::optim::SGDOptions(0.1).momentum(rule.factor).weight_decay(rule.decay).nesterov(rule.nesterov);
    expect_steps_of([&](const at::Tensor& w) { return std::make_unique<torch::optim::SGD>(std::vector{w}, options); },
                    [&](const Memory& ours, const at::Tensor& gradient) {
                      EXPECT_TRUE(go_with_momentum(ours, gradient, rate_of(0.1), rule));
                    });
  }
}

TEST(OnePass, TakesTheStepsOfLibtorchsAdam) {
  for (const AdamRule& rule : {AdamRule{.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .decay = 0, .decoupled = false},
                               AdamRule{.beta1 = 0.3, .beta2 = 0.9, .epsilon = 1e-3, .decay = 0.2, .decoupled = false},
                               AdamRule{.beta1 = 0, .beta2 = 0.9, .epsilon = 1e-3, .decay = 0, .decoupled = false}}) {
    const auto options =
        torch::optim::AdamOptions(0.1).betas({rule.beta1, rule.beta2}).eps(rule.epsilon).weight_decay(rule.decay);
    expect_steps_of([&](const at::Tensor& w) { return std::make_unique<torch::optim::Adam>(std::vector{w}, options); },
                    [&](const Memory& ours, const at::Tensor& gradient) {
                      EXPECT_TRUE(go_with_adam(ours, ours[3], gradient, rate_of(0.1), rule));
                    });
  }
}

TEST(OnePass, TakesTheStepsOfLibtorchsAdamW) {
  const AdamRule rule{.beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-3, .decay = 0.2, .decoupled = true};
  const auto options = torch::optim::AdamWOptions(0.1).betas({0.8, 0.9}).eps(1e-3).weight_decay(0.2);
  expect_steps_of([&](const at::Tensor& w) { return std::make_unique<torch::optim::AdamW>(std::vector{w}, options); },
                  [&](const Memory& ours, const at::Tensor& gradient) {
                    EXPECT_TRUE(go_with_adam(ours, ours[3], gradient, rate_of(0.1), rule));
                  });
}

constexpr AdamRule kAdam{.beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-6, .decay = 0.1, .decoupled = false};
constexpr MomentumRule kMomentum{.factor = 0.9, .decay = 0.1, .nesterov = true};

TEST(OnePass, CountsTheSteps) {
  const Memory of{torch::randn({3}), torch::zeros({3}), torch::zeros({3})};
  const at::Tensor steps = torch::full({1}, 4, torch::kDouble);

  EXPECT_TRUE(go_with_adam(of, steps, torch::randn({3}), rate_of(0.1), kAdam));

  EXPECT_EQ(steps.item<double>(), 5);
}

TEST(OnePass, HasTheSameBitsOnAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  const Memory start{torch::randn({100'003}), torch::randn({100'003}), torch::rand({100'003})};
  const at::Tensor gradient = torch::randn({100'003});
  auto with = [&](int count) {
    at::set_num_threads(count);
    const Memory of = copies_of(start);
    EXPECT_TRUE(go_with_adam(of, torch::ones({1}, torch::kDouble), gradient, rate_of(0.1), kAdam));
    EXPECT_TRUE(go_with_momentum(of, gradient, rate_of(0.1), kMomentum));
    at::set_num_threads(threads);
    return of;
  };

  const Memory alone = with(1), three = with(3);

  for (size_t i = 0; i < alone.size(); ++i) EXPECT_TRUE(torch::equal(alone[i], three[i])) << i;
}

TEST(OnePass, HasTheSameBitsHoweverItsOperandsLie) {
  const Memory start{torch::randn({6, 5}), torch::randn({6, 5}), torch::rand({6, 5})};
  auto trained = [&](bool columns, const at::Tensor& gradient) {
    Memory of;
    for (const at::Tensor& each : start) of.push_back(columns ? each.t().contiguous().t() : each.clone());
    EXPECT_TRUE(go_with_adam(of, torch::zeros({1}, torch::kDouble), gradient, rate_of(0.1), kAdam));
    EXPECT_TRUE(go_with_momentum(of, gradient, rate_of(0.1), kMomentum));
    EXPECT_EQ(of[0].is_contiguous(), !columns);
    return of;
  };
  const at::Tensor wide = torch::randn({6, 10}), plain = wide.slice(1, 0, 10, 2).contiguous();
  const Memory expected = trained(false, plain), of_ones = trained(false, torch::ones({6, 5}));

  for (const bool columns : {false, true}) {
    for (const at::Tensor& gradient : {plain, plain.t().contiguous().t(), wide.slice(1, 0, 10, 2)}) {
      const Memory found = trained(columns, gradient);
      for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(torch::equal(found[i], expected[i])) << i;
    }
    EXPECT_TRUE(torch::equal(trained(columns, torch::ones({}).expand({6, 5}))[0], of_ones[0])) << "all in one place";
  }
}

// Whoever sends a program may have made it of any tensors.
TEST(OnePass, LeavesWhatItHasNoLoopForAndChangesNothing) {
  const at::Tensor value = torch::randn({4, 3}), other = torch::randn({4, 3}), third = torch::rand({4, 3});
  const at::Tensor gradient = torch::randn({4, 3}), rate = rate_of(0.1), both = torch::randn({5, 3});
  auto in_columns = [](const at::Tensor& matrix) { return matrix.t().contiguous().t(); };
  auto in_type = [&](at::ScalarType type) {
    return Memory{value.to(type), other.to(type), third.to(type), gradient.to(type)};
  };
  struct Case {
    const char* what;
    Memory of;  // the value, two slots, the gradient
    at::Tensor rate;
  };
  const std::vector<Case> cases{
      {"float16", in_type(at::kHalf), rate},
      {"bfloat16", in_type(at::kBFloat16), rate},
      {"complex", in_type(at::kComplexFloat), rate},
      {"a gradient of another type", {value, other, third, gradient.to(at::kDouble)}, rate},
      {"slots of another type", {value, other.to(at::kDouble), third.to(at::kDouble), gradient}, rate},
      {"a gradient for all rows", {value, other, third, gradient[0]}, rate},
      {"a larger gradient", {value, other, third, torch::randn({4, 4})}, rate},
      {"smaller slots", {value, other[0], third[0], gradient}, rate},
      {"slots that lie otherwise", {in_columns(value), other, third, gradient}, rate},
      {"a value with gaps", {torch::randn({4, 6}).slice(1, 0, 6, 2), other, third, gradient}, rate},
      {"a gradient that is the value", {value, other, third, value}, rate},
      {"a gradient that is a slot", {value, other, third, other}, rate},
      {"a gradient beside the value", {both.narrow(0, 0, 4), other, third, both.narrow(0, 1, 4)}, rate},
      {"a slot beside the value", {both.narrow(0, 0, 4), both.narrow(0, 1, 4), third, gradient}, rate},
      {"a rate in float", {value, other, third, gradient}, rate.to(at::kFloat)},
      {"several rates", {value, other, third, gradient}, torch::ones({2}, torch::kDouble)},
      {"no rate", {value, other, third, gradient}, at::Tensor()},
      {"no gradient", {value, other, third, at::Tensor()}, rate},
      {"no slots", {value, at::Tensor(), at::Tensor(), gradient}, rate},
  };
  for (const Case& each : cases) {
    Memory before;
    for (const at::Tensor& tensor : each.of) before.push_back(tensor.defined() ? tensor.clone() : tensor);
    const at::Tensor steps = torch::zeros({1}, torch::kDouble);

    EXPECT_FALSE(go_with_momentum(each.of, each.of[3], each.rate, kMomentum)) << each.what;
    EXPECT_FALSE(go_with_adam(each.of, steps, each.of[3], each.rate, kAdam)) << each.what;

    for (size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(!before[i].defined() || torch::equal(each.of[i], before[i])) << each.what << " " << i;
    }
    EXPECT_EQ(steps.item<double>(), 0) << each.what;
  }
  const Memory slots_are_one{value, other, other};
  EXPECT_FALSE(go_with_adam(slots_are_one, torch::zeros({1}, torch::kDouble), gradient, rate, kAdam));
  const Memory plain{value, other, third};
  EXPECT_FALSE(go_with_adam(plain, torch::zeros({1}), gradient, rate, kAdam)) << "steps in float";
}

TEST(OnePass, UpdatesAllOfAListWhateverTheirTypes) {
  Memory values, momenta, gradients, expected;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    values.push_back(torch::randn({3, 5}).to(type));
    momenta.push_back(torch::randn({3, 5}).to(type));
    gradients.push_back(torch::randn({3, 5}).to(type));
    at::Tensor value = values.back().clone(), momentum = momenta.back().clone();
    step_ops::momentum_(value, gradients.back(), momentum, rate_of(0.1), kMomentum);
    expected.push_back(value);
    expected.push_back(momentum);
  }
  std::vector<c10::IValue> stack{values,           gradients,       momenta,           rate_of(0.1),
                                 kMomentum.factor, kMomentum.decay, kMomentum.nesterov};

  EXPECT_TRUE(one_pass("muster_step::momentum_all_")(stack));

  EXPECT_TRUE(stack.empty());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(torch::allclose(values[i], expected[2 * i], 1e-5, 1e-6)) << i;
    EXPECT_TRUE(torch::allclose(momenta[i], expected[2 * i + 1], 1e-5, 1e-6)) << i;
  }
}

TEST(OnePass, IsOfStepsOfOptimizersAlone) {
  EXPECT_EQ(one_pass("muster_step::descend_"), nullptr);
  EXPECT_EQ(one_pass("aten::add_.Tensor"), nullptr);
}

// ---- In a plan
Program step_of_adam() {
  Builder b;
  const ValueId gradient = b.argument(), rate = b.argument({DType::kDouble, {}});
  const ValueId w = b.variable("w"), mean = b.variable("mean"), variance = b.variable("variance");
  const ValueId steps = b.variable("steps");
  b.program.variables.back().spec = {DType::kDouble, {1}};
  b.op("muster_step::adam_", {ref(w),
                              ref(gradient),
                              ref(mean),
                              ref(variance),
                              ref(steps),
                              ref(rate),
                              number(kAdam.beta1),
                              number(kAdam.beta2),
                              number(kAdam.epsilon),
                              number(kAdam.decay),
                              {kAdam.decoupled}});
  Program program = b.finish({});
  check(program);
  return program;
}

TEST(OnePass, IsPlannedWhereKernelsMayBeChosen) {
  const LocalDevices devices{{.cpus = 1, .gpus = false}};
  const OpCatalog catalog;
  Autotuner tuner;
  auto planned = [&](Autotuner* chooses) {
    const Plan plan(place(step_of_adam(), {.devices = devices.names(), .default_device = devices.default_name()}),
                    devices, catalog, chooses);
    EXPECT_EQ(plan.lanes.at(0).size(), 1U);
    return plan.lanes[0][0].as<Step::Op>()->one_pass;
  };

  EXPECT_EQ(planned(&tuner), one_pass("muster_step::adam_"));
  EXPECT_EQ(planned(nullptr), nullptr) << "a worker that is to be exact";
}

TEST(OnePass, GivesTheBitsOfItsOpOnAWorkerThatIsExact) {
  torch::manual_seed(3);
  const at::Tensor start = torch::randn({2, 2});
  for (const bool exact : {false, true}) {
    LocalWorker worker({.devices = {.gpus = false}, .exact = exact});
    at::Tensor w = start.clone(), mean = torch::zeros({2, 2}), variance = torch::zeros({2, 2});
    at::Tensor steps = torch::zeros({1}, torch::kDouble);
    const Program program = step_of_adam();
    const std::vector<at::Tensor> values{w, mean, variance, steps};
    for (size_t i = 0; i < values.size(); ++i) {
      worker.store().declare(program.variables[i].name, program.variables[i].spec, at::kCPU)->assign(values[i].clone());
    }
    const ProgramHandle step = worker.register_program(program);
    for (int i = 0; i < 3; ++i) {
      const at::Tensor gradient = torch::randn({2, 2});
      worker.run(step, {gradient, rate_of(0.1)});
      step_ops::adam_(w, gradient, mean, variance, steps, rate_of(0.1), kAdam);
    }

    for (size_t i = 0; i < values.size(); ++i) {
      const at::Tensor found = worker.store().find(program.variables[i].name)->read();
      EXPECT_TRUE(exact ? torch::equal(found, values[i]) : torch::allclose(found, values[i], 1e-5, 1e-6)) << i;
    }
  }
}

}  // namespace
}  // namespace muster::one_pass_test
