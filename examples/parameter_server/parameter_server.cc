// Three workers and two parameter servers in this process; 1,000 asynchronous steps.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  muster::InProcessCluster cluster({.workers = 3, .ps = 2});
  muster::ParameterServerStrategy strategy(cluster.resolver(),
                                           {.partitioner = muster::MinSizePartitioner{.max_shards = 2}});
  auto w = strategy.make<muster::Variable>(torch::zeros({784, 10}));

  muster::ClusterCoordinator coordinator(strategy);
  auto batches = coordinator.create_per_worker_dataset([](muster::InputContext input) {
    return muster::Dataset::synthetic_digits().shard(input).shuffle(10'000).batch(64, /*drop_remainder=*/true).repeat();
  });
  auto step = muster::function([&](muster::Iterator& it) {
    auto [x, y] = it.next();
    auto loss = torch::cross_entropy_loss(torch::matmul(x, w), y);
    w.assign_sub(0.1 * muster::gradient(loss, w));
    return loss;
  });

  muster::RemoteValue<torch::Tensor> loss;
  for (int i = 0; i < 1'000; ++i) loss = coordinator.schedule(step, batches);
  coordinator.join();
  std::cout << "loss " << loss.fetch().item<float>() << "\n";
  return loss.fetch().item<float>() < 0.5 ? 0 : 1;
}
