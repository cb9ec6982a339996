#include "bench/training.h"
#include "bench/workloads.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"

namespace muster::bench {
namespace {

constexpr int kSteps = 2000;
constexpr int kStepsPerCall = 10;
constexpr double kSamples = kSteps * kBatch;

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

  bench.rate({part.name + "_" + std::to_string(kStepsPerCall) + "steps_per_call", "samples/s"}, kSamples, [&] {
    for (int i = 0; i < kSteps / kStepsPerCall; ++i) call();
  });

  check_fell("mlp_local", first, batches.mean(value));
}

}  // namespace

void mlp_local(const Part& part, Bench& bench) {
  const Pool pool = make_pool();
  Batches traced(pool), eager(pool);
  measure_traced("mlp_local", bench, part.name, kSteps, traced, mlp());
  many_steps_per_call(part, pool, bench);
  measure_eager("mlp_local", bench, part.name, kSteps, eager, mlp());
}

}  // namespace muster::bench
