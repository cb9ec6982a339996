#include "bench/models.h"
#include "bench/workloads.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"

namespace muster::bench {
namespace {

constexpr int kSteps = 2000;
constexpr int kWarmUp = 5;
constexpr int kStepsPerCall = 10;
constexpr double kSamples = kSteps * kBatch;

std::string metric_name(const Part& part, int steps_per_call) {
  return part.name + "_" + std::to_string(steps_per_call) + "steps_per_call";
}

void one_step_per_call(const Part& part, const Pool& pool, Bench& bench) {
  Batches batches(pool);
  torch::nn::Sequential net = mlp();
  ModuleVariables parameters = adopt(net);
  const std::vector<Variable> variables = parameters.trainable();
  auto loss = function([&](at::Tensor x, at::Tensor y) { return loss_of(net, x, y); });
  auto step = function([&](at::Tensor x, at::Tensor y) { return train(net, variables, x, y); });
  const double first = loss(batches.x(), batches.y()).item<double>();
  batches.feed(kWarmUp, step);

  bench.rate({metric_name(part, 1), "samples/s"}, kSamples, [&] { batches.feed(kSteps, step); });

  check_fell("mlp_local", first, loss(batches.x(), batches.y()).item<double>());
}

// The pool is an argument, and each step takes its batch out of it.
void many_steps_per_call(const Part& part, const Pool& pool, Bench& bench) {
  Batches batches(pool);
  torch::nn::Sequential net = mlp();
  ModuleVariables parameters = adopt(net);
  const std::vector<Variable> variables = parameters.trainable();
  auto loss = function([&](at::Tensor x, at::Tensor y) { return loss_of(net, x, y); });
  auto steps = function([&](at::Tensor xs, at::Tensor ys, at::Tensor first) {
    return repeat(
        kStepsPerCall,
        [&](at::Tensor index, at::Tensor) {
          const at::Tensor batch = (first + index).remainder(kPool);
          return train(net, variables, element(xs, batch), element(ys, batch)).detach();
        },
        torch::zeros({}));
  });
  int64_t done = 0;
  auto call = [&] {
    steps(pool.x, pool.y, torch::scalar_tensor(done, torch::kLong));
    done = (done + kStepsPerCall) % kPool;
  };
  const double first = loss(batches.x(), batches.y()).item<double>();
  for (int i = 0; i < kWarmUp; ++i) call();

  bench.rate({metric_name(part, kStepsPerCall), "samples/s"}, kSamples, [&] {
    for (int i = 0; i < kSteps / kStepsPerCall; ++i) call();
  });

  check_fell("mlp_local", first, loss(batches.x(), batches.y()).item<double>());
}

void eager(const Part& part, const Pool& pool, Bench& bench) {
  Batches batches(pool);
  EagerTrainer trainer(mlp());
  auto step = [&](const at::Tensor& x, const at::Tensor& y) { trainer.step(x, y); };
  const double first = trainer.loss(batches.x(), batches.y());
  batches.feed(kWarmUp, step);

  bench.rate({part.name + "_eager", "samples/s", "libtorch"}, kSamples, [&] { batches.feed(kSteps, step); });

  check_fell("mlp_local", first, trainer.loss(batches.x(), batches.y()));
}

}  // namespace

void mlp_local(const Part& part, Bench& bench) {
  const Pool pool = make_pool();
  one_step_per_call(part, pool, bench);
  many_steps_per_call(part, pool, bench);
  eager(part, pool, bench);
}

}  // namespace muster::bench
