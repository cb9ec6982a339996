// The same five lines twice: in this process, and on a cluster.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>

int64_t alone() {
  muster::Variable v(torch::zeros({}, torch::kLong));
  muster::Iterator numbers = muster::Dataset::range(1, 6).iterator();
  auto step = muster::function([&](muster::Iterator& it) { v.assign_add(it.next<1>()[0]); });
  for (int i = 0; i < 5; ++i) step(numbers);
  return v.value().item<int64_t>();
}

int64_t distributed() {
  muster::InProcessCluster cluster({.workers = 1, .ps = 1});
  muster::ParameterServerStrategy strategy(cluster.resolver());
  muster::ClusterCoordinator coordinator(strategy);

  auto v = strategy.make<muster::Variable>(torch::zeros({}, torch::kLong));
  auto numbers = coordinator.create_per_worker_dataset(muster::Dataset::range(1, 6));
  auto step = muster::function([&](muster::Iterator& it) { v.assign_add(it.next<1>()[0]); });
  for (int i = 0; i < 5; ++i) coordinator.schedule(step, numbers);
  coordinator.join();
  return v.value().item<int64_t>();
}

int main() {
  const int64_t first = alone(), second = distributed();
  std::cout << "alone " << first << ", distributed " << second << "\n";
  return first == 15 && second == 15 ? 0 : 1;
}
