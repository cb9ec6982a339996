// A multilayer perceptron trained asynchronously by 2 worker processes with its variables on 1 parameter server
// process.
#include <torch/torch.h>

#include "bench/models.h"
#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/cluster/simple_cluster_resolver.h"
#include "muster/distribute/cluster_coordinator.h"
#include "muster/trace/control_flow.h"

namespace muster::bench {
namespace {

constexpr int kSteps = 600, kStepsPerClosure = 10;

}  // namespace

void ps_mlp(const Part&, Bench& bench) {
  ServerProcesses servers(2, 1);
  ParameterServerStrategy strategy(SimpleClusterResolver(servers.spec(), {.rpc_layer = "grpc"}));
  torch::nn::Sequential net = mlp();
  const ModuleVariables variables = [&] {
    auto scope = strategy.scope();
    return adopt(net);
  }();
  ClusterCoordinator coordinator(strategy);
  const Pool pool = make_pool();
  auto batches = coordinator.create_per_worker_dataset(Dataset::tensors({pool.x, pool.y}).repeat());
  auto one_step = function([&](Iterator& it) {
    auto [x, y] = it.next();
    train(net, variables.trainable(), x, y);
  });
  auto ten_steps = function([&](Iterator& it) {
    repeat(kStepsPerClosure, [&](const torch::Tensor&) {
      auto [x, y] = it.next();
      train(net, variables.trainable(), x, y);
    });
  });
  auto loss = function([&](const torch::Tensor& x, const torch::Tensor& y) { return loss_of(net, x, y); });
  auto mean_loss = [&] {
    return Batches(pool).mean([&](const torch::Tensor& x, const torch::Tensor& y) {
      return strategy.run(loss, x.contiguous(), y.contiguous()).item<double>();
    });
  };

  const double first = mean_loss();
  auto measure = [&](const std::string& name, int per_closure, const auto& step) {
    auto burst = [&](int steps) {
      for (int i = 0; i < steps / per_closure; ++i) coordinator.schedule(step, batches);
      coordinator.join();
    };
    burst(20 * per_closure);
    bench.rate({"async_2workers_" + name + "steps_per_closure", "samples/s"}, kSteps * kBatch, [&] { burst(kSteps); });
  };
  measure("1", 1, one_step);
  measure("10", kStepsPerClosure, ten_steps);
  check_fell("ps_mlp", first, mean_loss());
}

}  // namespace muster::bench
