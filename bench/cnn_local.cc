#include "bench/models.h"
#include "bench/workloads.h"
#include "muster/trace/function.h"

namespace muster::bench {
namespace {

constexpr int kSteps = 30;
constexpr int kWarmUp = 5;
constexpr double kSamples = kSteps * kBatch;

}  // namespace

void cnn_local(const Part& part, Bench& bench) {
  Batches batches(make_pool());
  {
    torch::nn::Sequential net = cnn();
    ModuleVariables parameters = adopt(net);
    const std::vector<Variable> variables = parameters.trainable();
    auto loss = function([&](at::Tensor x, at::Tensor y) { return loss_of(net, x, y); });
    auto value = [&](const at::Tensor& x, const at::Tensor& y) { return loss(x, y).item<double>(); };
    auto step = function([&](at::Tensor x, at::Tensor y) { return train(net, variables, x, y); });
    const double first = batches.mean(value);
    batches.feed(kWarmUp, step);

    bench.rate({part.name + "_1steps_per_call", "samples/s"}, kSamples, [&] { batches.feed(kSteps, step); });

    check_fell("cnn_local", first, batches.mean(value));
  }
  EagerTrainer trainer(cnn());
  auto step = [&](const at::Tensor& x, const at::Tensor& y) { trainer.step(x, y); };
  auto loss = [&](const at::Tensor& x, const at::Tensor& y) { return trainer.loss(x, y); };
  const double first = batches.mean(loss);
  batches.feed(kWarmUp, step);

  bench.rate({part.name + "_eager", "samples/s", "libtorch"}, kSamples, [&] { batches.feed(kSteps, step); });

  check_fell("cnn_local", first, batches.mean(loss));
}

}  // namespace muster::bench
