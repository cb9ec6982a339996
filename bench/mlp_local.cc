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
  auto value = [&](const at::Tensor& x, const at::Tensor& y) { return loss(x, y).item<double>(); };
  auto step = function([&](at::Tensor x, at::Tensor y) { return train(net, variables, x, y); });
  const double first = batches.mean(value);
  batches.feed(kWarmUp, step);

  bench.rate({metric_name(part, 1), "samples/s"}, kSamples, [&] { batches.feed(kSteps, step); });

  check_fell("mlp_local", first, batches.mean(value));
}

// The pool is an argument, and each step takes its batch out of it.
void many_steps_per_call(const Part& part, const Pool& pool, Bench& bench) {
  Batches batches(pool);
  torch::nn::Sequential net = mlp();
  ModuleVariables parameters = adopt(net);
  const std::vector<Variable> variables = parameters.trainable();
  auto loss = function([&](at::Tensor x, at::Tensor y) { return loss_of(net, x, y); });
  auto value = [&](const at::Tensor& x, const at::Tensor& y) { return loss(x, y).item<double>(); };
  auto steps = function([&](at::Tensor xs, at::Tensor ys, at::Tensor order) {
    return repeat(
        kStepsPerCall,
        [&](at::Tensor index, at::Tensor) {
          const at::Tensor batch = order.index_select(0, index);
          return train(net, variables, element(xs, batch), element(ys, batch)).detach();
        },
        torch::zeros({}));
  });
  const at::Tensor turns = torch::arange(kPool + kStepsPerCall).remainder(kPool);
  int64_t done = 0;
  auto call = [&] {
    steps(pool.x, pool.y, turns.narrow(0, done, kStepsPerCall));
    done = (done + kStepsPerCall) % kPool;
  };
  const double first = batches.mean(value);
  for (int i = 0; i < kWarmUp; ++i) call();

  bench.rate({metric_name(part, kStepsPerCall), "samples/s"}, kSamples, [&] {
    for (int i = 0; i < kSteps / kStepsPerCall; ++i) call();
  });

  check_fell("mlp_local", first, batches.mean(value));
}

void eager(const Part& part, const Pool& pool, Bench& bench) {
  Batches batches(pool);
  EagerTrainer trainer(mlp());
  auto step = [&](const at::Tensor& x, const at::Tensor& y) { trainer.step(x, y); };
  auto loss = [&](const at::Tensor& x, const at::Tensor& y) { return trainer.loss(x, y); };
  const double first = batches.mean(loss);
  batches.feed(kWarmUp, step);

  bench.rate({part.name + "_eager", "samples/s", "libtorch"}, kSamples, [&] { batches.feed(kSteps, step); });

  check_fell("mlp_local", first, batches.mean(loss));
}

}  // namespace

void mlp_local(const Part& part, Bench& bench) {
  const Pool pool = make_pool();
  one_step_per_call(part, pool, bench);
  many_steps_per_call(part, pool, bench);
  eager(part, pool, bench);
}

}  // namespace muster::bench
