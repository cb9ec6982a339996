// One binary for every task of a real cluster:
//   ./task --cluster cluster.json --task_type worker --task_index 0 --credentials certificates/worker-0
// Without the first three flags the task is the one that TF_CONFIG names; without credentials (`muster certs` makes
// them) it listens on the loopback device only, unless it is told --insecure. examples/task/run starts six of them
// here.
#include <muster/muster.h>
#include <torch/torch.h>

#include <iostream>

// The chief runs the training program.
void train(const muster::ClusterResolver& cluster, const muster::Credentials& credentials) {
  muster::ParameterServerStrategy strategy(cluster, {.credentials = credentials});
  auto net = strategy.make<torch::nn::Linear>(784, 10);
  const muster::Sgd sgd(net, {.learning_rate = 0.1});
  muster::ClusterCoordinator coordinator(strategy);
  auto batches = coordinator.create_per_worker_dataset([](muster::InputContext input) {
    return muster::Dataset::synthetic_digits().shard(input).shuffle(10'000).batch(64).repeat();
  });
  auto step = muster::function([&](muster::Iterator& it) {
    auto [x, y] = it.next();
    auto loss = torch::cross_entropy_loss(net->forward(x), y);
    sgd.minimize(loss);
    return loss;
  });

  muster::RemoteValue<torch::Tensor> loss;
  muster::ProgressBar bar({.title = "train", .total = 1'000});
  for (int i = 1; i <= 1'000; ++i) {
    loss = coordinator.schedule(step, batches);
    if (i % 100 != 0) continue;
    coordinator.join();
    bar.update(i, "loss " + std::to_string(loss.fetch().item<float>()));
  }
}

int main(int argc, char** argv) {
  try {
    auto options = muster::server_options_from_flags(argc, argv);  // flags first, else TF_CONFIG
    if (options.task.job == "worker" || options.task.job == "ps") return muster::Server(options).join();
    train(muster::resolver_from_flags(argc, argv), options.credentials);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "task: " << error.what() << "\n";
    return 1;
  }
}
