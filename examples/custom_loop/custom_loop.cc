// A training loop of one's own: a dataset for each worker, an optimizer, and losses that are collected while the next
// epoch already runs.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>

namespace {

constexpr int kEpochs = 3, kStepsPerEpoch = 150;

}  // namespace

int main() {
  muster::InProcessCluster cluster({.workers = 3, .ps = 2});
  muster::ParameterServerStrategy strategy(cluster.resolver(), {.placement = muster::PsPlacement::kBalancedByBytes});
  auto net =
      strategy.make<torch::nn::Sequential>(torch::nn::Linear(784, 64), torch::nn::ReLU(), torch::nn::Linear(64, 10));
  const muster::Adam adam(net, {.learning_rate = 0.002});

  muster::ClusterCoordinator coordinator(strategy);
  auto batches = coordinator.create_per_worker_dataset([](muster::InputContext input) {
    return muster::Dataset::synthetic_digits().shard(input).shuffle(10'000).batch(64, /*drop_remainder=*/true).repeat();
  });
  auto step = muster::function([&](muster::Iterator& it) {
    auto [x, y] = it.next();
    torch::Tensor logits = net->forward(x);
    torch::Tensor loss = torch::cross_entropy_loss(logits, y);
    adam.minimize(loss);
    return torch::stack({loss.detach(), (logits.argmax(1) == y).to(torch::kFloat).mean()});
  });

  double first = 0, last = 0;
  std::vector<muster::RemoteValue<torch::Tensor>> before;
  for (int epoch = 0; epoch <= kEpochs; ++epoch) {
    std::vector<muster::RemoteValue<torch::Tensor>> now;
    for (int i = 0; epoch < kEpochs && i < kStepsPerEpoch; ++i) now.push_back(coordinator.schedule(step, batches));
    if (!before.empty()) {  // while the workers are busy with the new ones
      const torch::Tensor means = torch::stack(coordinator.fetch(before)).mean(0);
      last = means[0].item<double>();
      if (epoch == 1) first = last;
      std::cout << "epoch " << epoch << "  loss " << last << "  accuracy " << means[1].item<double>() << "\n";
    }
    before = std::move(now);
  }
  const muster::HistogramSnapshot took = coordinator.metrics().snapshot().closure_execution;
  std::cout << took.count << " steps, " << 1000 * took.sum / static_cast<double>(took.count) << " ms each\n";
  return last < first ? 0 : 1;
}
