// A program outside the checkout: an installed Muster brings its headers, its library and libtorch. It counts on
// parameter servers of its own, and says what it was told when it asks for something that is not there.
#include <ATen/ops/add.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <muster/muster.h>

#include <iostream>

int main() {
  muster::InProcessCluster cluster({.workers = 2, .ps = 1});
  muster::ParameterServerStrategy strategy(cluster.resolver());
  auto counted = strategy.make<muster::Variable>(at::zeros({2, 3}));
  muster::ClusterCoordinator coordinator(strategy);
  auto step = muster::function([&](at::Tensor x) { counted.assign_add(x); });
  for (int i = 0; i < 4; ++i) coordinator.schedule(step, at::ones({2, 3}));
  coordinator.join();
  std::cout << "counted to " << counted.value().sum().item<float>() << "\n";

  try {
    muster::Dataset::range(1, 0, 0);
  } catch (const muster::Error& error) {
    std::cout << error.what() << "\n";
  }
}
