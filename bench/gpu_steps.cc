// Training steps on a GPU with their arguments there, beside the anchors of bench/gpu/anchors.py.
#include <ATen/Context.h>
#include <torch/torch.h>

#include "bench/models.h"
#include "bench/workloads.h"
#include "muster/base/status.h"
#include "muster/fit/autocast.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"

namespace muster::bench {
namespace {

namespace nn = torch::nn;
using Forward = std::function<at::Tensor(const at::Tensor& x)>;

constexpr int kTenSteps = 10;

// A net with its data; the loss is the mean cross entropy.
struct Subject {
  std::shared_ptr<nn::Module> module;
  Forward forward;
  at::Tensor x, y;
  int steps;  // to measure
};

struct TransformerImpl : nn::Module {
  static constexpr int64_t kWidth = 512, kClasses = 1000;
  TransformerImpl()
      : encoder(register_module("encoder", nn::TransformerEncoder(nn::TransformerEncoderOptions(
                                               nn::TransformerEncoderLayerOptions(kWidth, 8).dropout(0.0), 6)))),
        head(register_module("head", nn::Linear(kWidth, kClasses))) {}
  at::Tensor forward(const at::Tensor& x) {  // [length, batch, width]
    return head(encoder(x)).flatten(0, 1);
  }
  nn::TransformerEncoder encoder;
  nn::Linear head;
};
TORCH_MODULE(Transformer);

// Two convolutions and a way around them, as in a ResNet-18.
struct ResidualImpl : nn::Module {
  ResidualImpl(int64_t from, int64_t to, int64_t stride)
      : first(
            register_module("first", nn::Conv2d(nn::Conv2dOptions(from, to, 3).stride(stride).padding(1).bias(false)))),
        second(register_module("second", nn::Conv2d(nn::Conv2dOptions(to, to, 3).padding(1).bias(false)))),
        first_norm(register_module("first_norm", nn::BatchNorm2d(to))),
        second_norm(register_module("second_norm", nn::BatchNorm2d(to))) {
    if (from == to && stride == 1) return;
    around = register_module("around", nn::Conv2d(nn::Conv2dOptions(from, to, 1).stride(stride).bias(false)));
    around_norm = register_module("around_norm", nn::BatchNorm2d(to));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor way = around ? around_norm(around(x)) : x;
    return torch::relu(second_norm(second(torch::relu(first_norm(first(x))))) + way);
  }
  nn::Conv2d first, second, around{nullptr};
  nn::BatchNorm2d first_norm, second_norm, around_norm{nullptr};
};
TORCH_MODULE(Residual);

nn::Sequential resnet18() {
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false)), nn::BatchNorm2d(64),
                     nn::ReLU(), nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
  int64_t from = 64;
  for (const int64_t to : {64, 128, 256, 512}) {
    net->push_back(Residual(from, to, from == to ? 1 : 2));
    net->push_back(Residual(to, to, 1));
    from = to;
  }
  net->push_back(nn::AdaptiveAvgPool2d(1));
  net->push_back(nn::Flatten());
  net->push_back(nn::Linear(512, 1000));
  return net;
}

template <class Net>
Subject subject(Net net, at::Tensor x, at::Tensor y, int steps) {
  return {net.ptr(), [net](const at::Tensor& input) mutable { return net->forward(input); }, x, y, steps};
}

Subject make(const std::string& name) {
  torch::manual_seed(1);
  if (name == "gpu_mlp") {
    return subject(mlp(), torch::rand({kBatch, 784}), torch::randint(10, {kBatch}, torch::kLong), 2000);
  }
  if (name == "gpu_transformer") {
    return subject(Transformer(), torch::rand({64, 16, TransformerImpl::kWidth}),
                   torch::randint(TransformerImpl::kClasses, {64 * 16}, torch::kLong), 100);
  }
  return subject(resnet18(), torch::rand({64, 3, 224, 224}), torch::randint(1000, {64}, torch::kLong), 30);
}

at::Tensor cross_entropy_of(const Forward& forward, const at::Tensor& x, const at::Tensor& y, bool lower) {
  std::optional<Autocast> autocast;
  if (lower) autocast.emplace();
  const at::Tensor output = forward(x);
  autocast.reset();
  return torch::cross_entropy_loss(output.to(torch::kFloat), y);
}

at::Tensor step(const Forward& forward, const std::vector<Variable>& variables, const at::Tensor& x,
                const at::Tensor& y, bool lower) {
  const at::Tensor loss = cross_entropy_of(forward, x, y, lower);
  const std::vector<at::Tensor> gradients = gradient(loss, variables);
  torch::NoGradGuard no_gradients;
  for (size_t i = 0; i < variables.size(); ++i) variables[i].value().sub_(gradients[i], kLearningRate);
  return loss;
}

// The time of a step when many are under way, as in training: the GPU is waited for at the end.
double us_per_step(int calls, int steps_per_call, const std::function<void()>& call) {
  for (int i = 0; i < 5; ++i) call();
  torch::cuda::synchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  torch::cuda::synchronize();
  return since(begin) * 1e6 / (calls * steps_per_call);
}

std::function<void()> eager(const Subject& subject, bool lower) {
  subject.module->to(at::kCUDA);
  auto sgd = std::make_shared<torch::optim::SGD>(subject.module->parameters(), kLearningRate);
  return [=, x = subject.x.to(at::kCUDA), y = subject.y.to(at::kCUDA)] {
    sgd->zero_grad();
    cross_entropy_of(subject.forward, x, y, lower).backward();
    sgd->step();
  };
}

}  // namespace

void gpu_steps(const Part& part, Bench& bench) {
  if (!torch::cuda::is_available()) throw failed_precondition("this machine has no GPU that libtorch can use");
  const size_t at = part.name.rfind('_');
  const std::string name = "gpu_" + part.name.substr(0, at), precision = part.name.substr(at + 1);
  const bool lower = precision == "bf16";
  at::globalContext().setFloat32MatmulPrecision(precision == "tf32" ? "high" : "highest");
  at::globalContext().setAllowTF32CuDNN(precision == "tf32");
  const Subject ours = make(name), theirs = make(name);
  const ModuleVariables adopted = adopt(*ours.module);
  const std::vector<Variable> variables = adopted.trainable();
  auto once = function([&](at::Tensor x, at::Tensor y) { return step(ours.forward, variables, x, y, lower); });
  auto ten = function([&](at::Tensor x, at::Tensor y) {
    return repeat(
        kTenSteps, [&](at::Tensor, at::Tensor) { return step(ours.forward, variables, x, y, lower).detach(); },
        torch::zeros({}));
  });
  const at::Tensor x = ours.x.to(at::kCUDA), y = ours.y.to(at::kCUDA);
  const std::function<void()> eager_step = eager(theirs, lower);
  bench.in_turn({{.metric = {part.name + "_1step_per_call", "us/step"},
                  .measure = [&] { return us_per_step(ours.steps, 1, [&] { once(x, y); }); },
                  .more_is_better = false},
                 {.metric = {part.name + "_10steps_per_call", "us/step"},
                  .measure = [&] { return us_per_step(ours.steps / kTenSteps, kTenSteps, [&] { ten(x, y); }); },
                  .more_is_better = false},
                 {.metric = {part.name + "_eager", "us/step", "libtorch"},
                  .measure = [&] { return us_per_step(ours.steps, 1, eager_step); },
                  .more_is_better = false}});
}

}  // namespace muster::bench
