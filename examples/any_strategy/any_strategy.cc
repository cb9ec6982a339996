// One model, one step, one loop under every strategy. Processes where they are needed are started by
// examples/any_strategy/run, or by hand:
//   any_strategy --strategy mirrored --devices /device:CPU:0,/device:CPU:1
//   muster run --workers 2 any_strategy --strategy multi_worker
//   muster run --workers 2 --ps 1 any_strategy --strategy parameter_server
#include <torch/torch.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>

#include "muster/muster.h"

namespace {

constexpr int kSteps = 500;

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

struct Setup {
  muster::Strategy strategy{};
  std::shared_ptr<muster::ClusterCoordinator> coordinator{};  // of parameter servers
};

Setup make_setup(const std::string& name, const std::vector<std::string>& devices) {
  Setup setup{muster::strategy_named(name, {.devices = devices})};
  if (setup.strategy.servers()) {
    const muster::ParameterServerStrategy servers(setup.strategy);
    setup.coordinator = std::make_shared<muster::ClusterCoordinator>(servers);
  }
  return setup;
}

using Loss = std::function<torch::Tensor()>;  // of a step: looked at, it is waited for

// A call takes a step, as the strategy takes them, and returns its loss.
template <class F>
std::function<Loss()> steps_of(const Setup& setup, const muster::Function<F>& step, const muster::Dataset& dataset) {
  if (setup.coordinator) {  // whichever worker is free takes it, and nobody waits for the others
    auto batches = setup.coordinator->create_per_worker_dataset([&](muster::InputContext) { return dataset; });
    return [=] {
      auto loss = setup.coordinator->schedule(step, batches);
      return [=] { return loss.fetch(); };
    };
  }
  auto batches = setup.strategy.distribute(dataset);  // all replicas take it together
  return [=] {
    auto losses = setup.strategy.run(step, batches);
    return [=] { return setup.strategy.reduce(muster::ReduceOp::kMean, losses); };
  };
}

// The share of digits that the net recognizes, of some that it has not seen.
double train(const Setup& setup) {
  const muster::Strategy& strategy = setup.strategy;
  torch::manual_seed(1);
  auto net =
      strategy.make<torch::nn::Sequential>(torch::nn::Linear(784, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10));
  const muster::Adam adam(net, {.learning_rate = 0.001});
  const auto digits = muster::Dataset::synthetic_digits(10'000).shuffle(10'000, 1).batch(64).repeat();
  auto step = muster::function([&](muster::Iterator& it) {
    auto [x, y] = it.next();
    torch::Tensor loss = torch::cross_entropy_loss(net->forward(x.flatten(1)), y);
    adam.minimize(loss);  // of the mean over the replicas
    return loss;
  });
  const auto take_step = steps_of(setup, step, digits);
  for (int i = 1; i <= kSteps; ++i) {
    const Loss loss = take_step();
    if (i % 100 != 0) continue;
    const auto value = loss().item<float>();
    if (strategy.is_chief()) std::cout << "  step " << i << "  loss " << value << "\n";
  }
  if (setup.coordinator) setup.coordinator->join();  // steps that nobody has looked at

  muster::adopted(net).write_back();  // from wherever its variables are: it is a plain libtorch module again
  auto test = muster::Dataset::synthetic_digits(1'000, /*seed=*/99).batch(1'000).iterator();
  auto [x, y] = test.next();
  const torch::NoGradGuard no_gradients;
  return net->forward(x.flatten(1)).argmax(1).eq(y).to(torch::kFloat).mean().item<double>();
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags{{"--strategy", ""}, {"--devices", "/device:CPU:0,/device:CPU:1"}};
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc || !flags.contains(argv[i])) {
      std::cerr
          << "usage: any_strategy [--strategy none|one_device|mirrored|central_storage|multi_worker|parameter_server]\n"
             "                    [--devices NAME,NAME]\n"
             "without a strategy: those of one process, one after the other\n";
      return 2;
    }
    flags[argv[i]] = argv[i + 1];
  }
  muster::set_local_options({.devices = {.cpus = 2}});
  std::vector<std::string> names{"none", "one_device", "mirrored", "central_storage"};
  if (!flags["--strategy"].empty()) names = {flags["--strategy"]};
  bool all_learned = true;
  for (const std::string& name : names) {
    const Setup setup = make_setup(name, split(flags["--devices"]));
    const muster::Strategy& strategy = setup.strategy;
    if (strategy.is_chief()) std::cout << name << ", " << strategy.num_replicas_in_sync() << " replica(s)\n";
    const double accuracy = train(setup);
    if (strategy.is_chief()) std::cout << "  recognizes " << 100 * accuracy << " % of digits that it has not seen\n";
    all_learned = all_learned && accuracy > 0.9;
  }
  return all_learned ? EXIT_SUCCESS : EXIT_FAILURE;
}
