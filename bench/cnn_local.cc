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
    auto step = function([&](at::Tensor x, at::Tensor y) { return train(net, variables, x, y); });
    const double first = loss(batches.x(), batches.y()).item<double>();
    batches.feed(kWarmUp, step);

    bench.rate({part.name + "_1steps_per_call", "samples/s"}, kSamples, [&] { batches.feed(kSteps, step); });

    check_fell("cnn_local", first, loss(batches.x(), batches.y()).item<double>());
  }
  EagerTrainer trainer(cnn());
  auto step = [&](const at::Tensor& x, const at::Tensor& y) { trainer.step(x, y); };
  const double first = trainer.loss(batches.x(), batches.y());
  batches.feed(kWarmUp, step);

  bench.rate({part.name + "_eager", "samples/s", "libtorch"}, kSamples, [&] { batches.feed(kSteps, step); });

  check_fell("cnn_local", first, trainer.loss(batches.x(), batches.y()));
}

}  // namespace muster::bench
