#include "bench/ps_training.h"

#include <torch/torch.h>

#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/trace/control_flow.h"

namespace muster::bench {
namespace {

constexpr int kManySteps = 10;  // of a closure that has more than one

std::vector<Variable> make_variables(const ParameterServerStrategy& strategy) {
  torch::manual_seed(1);
  auto scope = strategy.scope();
  std::vector<Variable> v;
  v.emplace_back(torch::randn({784, 128}) * 0.05);
  v.emplace_back(torch::zeros({128}));
  v.emplace_back(torch::randn({128, 10}) * 0.05);
  v.emplace_back(torch::zeros({10}));
  return v;
}

}  // namespace

PsTraining::PsTraining(int workers, int ps)
    : servers_(workers, ps),
      strategy_(SimpleClusterResolver(servers_.spec(), {.rpc_layer = "grpc"})),
      variables_(make_variables(strategy_)),
      sgd_(variables_, {.learning_rate = kLearningRate}),
      coordinator_(strategy_),
      pool_(make_pool()),
      batches_(coordinator_.create_per_worker_dataset(Dataset::tensors({pool_.x, pool_.y}).repeat())),
      one_step_(function(Step([this](Iterator& it) {
        auto [x, y] = it.next();
        sgd_.minimize(loss_of(x, y));
      }))),
      many_steps_(function(Step([this](Iterator& it) {
        repeat(kManySteps, [&](const torch::Tensor&) {
          auto [x, y] = it.next();
          sgd_.minimize(loss_of(x, y));
        });
      }))) {}

torch::Tensor PsTraining::loss_of(const torch::Tensor& x, const torch::Tensor& y) const {
  const std::vector<Variable>& v = variables_;
  const torch::Tensor h = torch::relu(torch::addmm(v[1], x, v[0]));
  return torch::cross_entropy_loss(torch::addmm(v[3], h, v[2]), y);
}

void PsTraining::train(int steps, int steps_per_closure) {
  for (int i = 0; i < steps / steps_per_closure; ++i) {
    coordinator_.schedule(steps_per_closure == 1 ? one_step_ : many_steps_, batches_);
  }
  coordinator_.join();
}

double PsTraining::mean_loss() {
  auto loss = function([this](const torch::Tensor& x, const torch::Tensor& y) { return loss_of(x, y); });
  return Batches(pool_).mean([&](const torch::Tensor& x, const torch::Tensor& y) {
    return strategy_.run(loss, x.contiguous(), y.contiguous()).value().item<double>();
  });
}

}  // namespace muster::bench
