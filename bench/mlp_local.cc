#include "bench/training.h"
#include "bench/workloads.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"

namespace muster::bench {
namespace {

constexpr int kStepsPerCall = 10;

// The pool is an argument, and each step takes its batch out of it.
Training many_steps_per_call(const Part& part, const Pool& pool, torch::nn::Sequential net) {
  auto batches = std::make_shared<Batches>(pool);
  auto loss = function([net](at::Tensor x, at::Tensor y) mutable { return loss_of(net, x, y); });
  auto steps =
      function([net, variables = adopt(net).trainable()](at::Tensor xs, at::Tensor ys, at::Tensor order) mutable {
        return repeat(
            kStepsPerCall,
            [&](at::Tensor index, at::Tensor) {
              const at::Tensor batch = order.index_select(0, index);
              return train(net, variables, element(xs, batch), element(ys, batch)).detach();
            },
            torch::zeros({}));
      });
  const at::Tensor turns = torch::arange(kPool + kStepsPerCall).remainder(kPool);
  return {.metric = {part.name + "_" + std::to_string(kStepsPerCall) + "steps_per_call", "samples/s"},
          .steps_per_call = kStepsPerCall,
          .call =
              [=, done = int64_t{0}]() mutable {
                steps(pool.x, pool.y, turns.narrow(0, done, kStepsPerCall));
                done = (done + kStepsPerCall) % kPool;
              },
          .loss = [=] { return batches->mean([&](auto& x, auto& y) { return loss(x, y).template item<double>(); }); }};
}

}  // namespace

void mlp_local(const Part& part, Bench& bench) {
  constexpr int kSteps = 2000;
  const Pool pool = make_pool();
  measure_training(
      "mlp_local", bench, kSteps,
      {traced(part.name, pool, mlp()), many_steps_per_call(part, pool, mlp()), eager(part.name, pool, mlp())});
}

}  // namespace muster::bench
