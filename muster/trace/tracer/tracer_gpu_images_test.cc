// Nets with batch norm, sums, relu and pooling, trained by the kernels of a GPU's own and as recorded. Skipped on
// machines without a GPU.
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/runtime/devices.h"
#include "muster/runtime/gpu/image_ops.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"
#include "muster/trace/module_variables.h"

namespace muster::tracer_gpu_images_test {

namespace nn = torch::nn;

class GpuImages : public ::testing::Test {
 protected:
  void SetUp() override {
    if (LocalDevices().names().size() == 1) GTEST_SKIP() << "no GPU, or MUSTER_GPUS=off";
    if (!image_ops::run_on(at::Device(at::kCUDA, 0))) GTEST_SKIP() << "no kernels for this GPU";
    torch::manual_seed(1);
  }
};

// The beginning of a ResNet: pooling, a block with a way around it, one with a convolution there, and the mean of what
// is left.
struct NetImpl : nn::Module {
  NetImpl() {
    for (const auto& [from, to, stride] : std::vector<std::array<int64_t, 3>>{
             {3, 16, 2}, {16, 16, 1}, {16, 16, 1}, {16, 32, 2}, {32, 32, 1}, {16, 32, 2}}) {
      convolutions->push_back(nn::Conv2d(nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false)));
      norms->push_back(nn::BatchNorm2d(to));
    }
    register_module("convolutions", convolutions);
    register_module("norms", norms);
    head = register_module("head", nn::Linear(32, 10));
  }
  at::Tensor normal(size_t i, const at::Tensor& x) {
    return norms[i]->as<nn::BatchNorm2d>()->forward(convolutions[i]->as<nn::Conv2d>()->forward(x));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = torch::max_pool2d(torch::relu(normal(0, x)), 3, 2, 1);
    y = torch::relu(normal(2, torch::relu(normal(1, y))) + y);
    y = torch::relu(normal(4, torch::relu(normal(3, y))) + normal(5, y));
    return head(y.mean({2, 3}));
  }
  nn::ModuleList convolutions, norms;
  nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> variables;
  int events = 0;  // ops of a step, if they are counted
};

at::Tensor step(Net net, const std::vector<Variable>& variables, const at::Tensor& x, const at::Tensor& y, bool lower) {
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  at::autocast::set_autocast_cache_enabled(false);
  at::autocast::set_autocast_enabled(at::kCPU, lower);
  const at::Tensor output = net->forward(x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  const at::Tensor loss = torch::cross_entropy_loss(output.to(at::kFloat), y);
  const std::vector<at::Tensor> gradients = gradient(loss, variables);
  for (size_t i = 0; i < variables.size(); ++i) Variable(variables[i]).assign_sub(gradients[i] * 0.05);
  return loss;
}

// Runs a program on a worker of its own, whose variables begin as ours.
Trained train(const Program& program, const ModuleVariables& variables, const std::vector<at::Tensor>& arguments,
              bool exact, int steps) {
  LocalWorker worker({.exact = exact});
  for (const Variable& variable : variables.all()) {
    worker.store().declare(variable.name(), variable.state()->spec, at::Device(at::kCUDA, 0))->assign(variable.value());
  }
  const ProgramHandle handle = worker.register_program(program);
  Trained trained;
  for (int i = 0; i < steps; ++i) trained.losses.push_back(worker.run(handle, arguments).at(0).item<double>());
  for (const Variable& variable : variables.all()) {
    trained.variables.push_back(worker.store().find(variable.name())->read().cpu().to(at::kDouble));
  }
  Profile profile;
  worker.run(handle, arguments, {.profile = &profile});
  trained.events = static_cast<int>(profile.events().size());
  return trained;
}

void compare(const Trained& ours, const Trained& exact, const ModuleVariables& variables, double limit) {
  EXPECT_LT(ours.losses.back(), ours.losses.front());
  for (size_t i = 0; i < ours.losses.size(); ++i) EXPECT_NEAR(ours.losses[i], exact.losses[i], limit) << i;
  for (size_t i = 0; i < ours.variables.size(); ++i) {
    const at::Tensor &a = ours.variables[i], &b = exact.variables[i];
    EXPECT_LT((a - b).norm().item<double>(), limit * (b.norm().item<double>() + 1)) << variables.all()[i].name();
  }
}

TEST_F(GpuImages, TrainANetAsLibtorchsKernelsDoUpToRounding) {
  constexpr int kSteps = 6;  // the third is recorded as a graph
  for (const bool lower : {false, true}) {
    Net net;
    const ModuleVariables variables = adopt(net);
    auto once = function([&](at::Tensor x, at::Tensor y) { return step(net, variables.trainable(), x, y, lower); });
    const std::vector<at::Tensor> arguments{torch::rand({8, 3, 32, 32}), torch::randint(10, {8}, torch::kLong)};
    const Program program = once.program(arguments[0], arguments[1]);

    const Trained exact = train(program, variables, arguments, true, kSteps);
    const Trained ours = train(program, variables, arguments, false, kSteps);

    compare(ours, exact, variables, lower ? 5e-2 : 1e-3);
    // Of 5 relu, 2 sums, the backward of both, and a sum of two gradients behind one of them nothing is left.
    EXPECT_LE(ours.events, exact.events - 13);
  }
}

TEST_F(GpuImages, TrainInLoopsAsStepByStep) {
  Net net;
  const ModuleVariables variables = adopt(net);
  auto once = function([&](at::Tensor x, at::Tensor y) { return step(net, variables.trainable(), x, y, false); });
  auto twice = function([&](at::Tensor x, at::Tensor y) {
    return repeat(
        2, [&](at::Tensor, at::Tensor) { return step(net, variables.trainable(), x, y, false).detach(); },
        torch::zeros({}));
  });
  const std::vector<at::Tensor> arguments{torch::rand({8, 3, 32, 32}), torch::randint(10, {8}, torch::kLong)};
  const Program one = once.program(arguments[0], arguments[1]), two = twice.program(arguments[0], arguments[1]);

  const Trained single = train(one, variables, arguments, false, 8), pairs = train(two, variables, arguments, false, 4);

  for (size_t i = 0; i < pairs.losses.size(); ++i) EXPECT_NEAR(pairs.losses[i], single.losses[2 * i + 1], 1e-3);
}

}  // namespace muster::tracer_gpu_images_test
