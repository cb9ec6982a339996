// A multilayer perceptron trained asynchronously by 2 worker processes with its variables on 1 parameter server
// process.
#include <torch/torch.h>

#include "bench/models.h"
#include "bench/server_processes.h"
#include "bench/workloads.h"
#include "muster/cluster/simple_cluster_resolver.h"
#include "muster/distribute/cluster_coordinator.h"
#include "muster/trace/control_flow.h"
#include "muster/train/optimizer.h"

namespace muster::bench {

void ps_mlp(const Part&, Bench& bench) {
  constexpr int kSteps = 600, kStepsPerClosure = 10;
  ServerProcesses servers(2, 1);
  ParameterServerStrategy strategy(SimpleClusterResolver(servers.spec(), {.rpc_layer = "grpc"}));
  torch::manual_seed(1);
  std::vector<Variable> v;  // as the peers have them: inputs by outputs
  {
    auto scope = strategy.scope();
    v.emplace_back(torch::randn({784, 128}) * 0.05);
    v.emplace_back(torch::zeros({128}));
    v.emplace_back(torch::randn({128, 10}) * 0.05);
    v.emplace_back(torch::zeros({10}));
  }
  auto loss_of_batch = [&](const torch::Tensor& x, const torch::Tensor& y) {
    const torch::Tensor h = torch::relu(torch::addmm(v[1], x, v[0]));
    return torch::cross_entropy_loss(torch::addmm(v[3], h, v[2]), y);
  };
  const Sgd sgd(v, {.learning_rate = kLearningRate});
  ClusterCoordinator coordinator(strategy);
  const Pool pool = make_pool();
  auto batches = coordinator.create_per_worker_dataset(Dataset::tensors({pool.x, pool.y}).repeat());
  auto one_step = function([&](Iterator& it) {
    auto [x, y] = it.next();
    sgd.minimize(loss_of_batch(x, y));
  });
  auto ten_steps = function([&](Iterator& it) {
    repeat(kStepsPerClosure, [&](const torch::Tensor&) {
      auto [x, y] = it.next();
      sgd.minimize(loss_of_batch(x, y));
    });
  });
  auto loss = function([&](const torch::Tensor& x, const torch::Tensor& y) { return loss_of_batch(x, y); });
  auto mean_loss = [&] {
    return Batches(pool).mean([&](const torch::Tensor& x, const torch::Tensor& y) {
      return strategy.run(loss, x.contiguous(), y.contiguous()).value().item<double>();
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
