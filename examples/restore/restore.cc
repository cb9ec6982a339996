// A parameter server dies and takes its variables along. The job waits until it is back, restores the last checkpoint
// into the restarted cluster, and goes on.
#include <muster/muster.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>

namespace {

constexpr int kSteps = 600, kStepsPerCheckpoint = 100;

}  // namespace

int main() {
  const std::string directory = std::filesystem::temp_directory_path() / ("muster-restore-" + std::to_string(getpid()));
  // Servers write and read checkpoints only where whoever starts them allows it.
  muster::InProcessCluster cluster({.workers = 2, .ps = 2, .worker = {.storage = {directory}}});
  muster::ParameterServerStrategy strategy(cluster.resolver());
  auto net = strategy.make<torch::nn::Linear>(784, 10);
  const muster::Adagrad adagrad(net, {.learning_rate = 0.05});
  muster::Checkpoints checkpoints(strategy, {.directory = directory});
  auto step = muster::function([&](muster::Iterator& it) {
    auto [x, y] = it.next();
    torch::Tensor loss = torch::cross_entropy_loss(net->forward(x), y);
    adagrad.minimize(loss);
    return loss;
  });

  int64_t done = 0;
  double loss = 0;
  bool killed = false;
  while (done < kSteps) {
    try {
      muster::ClusterCoordinator coordinator(strategy);
      auto batches = coordinator.create_per_worker_dataset([](muster::InputContext input) {
        return muster::Dataset::synthetic_digits().shard(input).shuffle(10'000).batch(64, true).repeat();
      });
      while (done < kSteps) {
        muster::RemoteValue<torch::Tensor> last;
        for (int i = 0; i < kStepsPerCheckpoint; ++i) last = coordinator.schedule(step, batches);
        if (!killed && done >= kSteps / 2) {
          cluster.stop({"ps", 1});  // as a crash would
          killed = true;
        }
        coordinator.join();
        done += kStepsPerCheckpoint;
        loss = last.fetch().item<double>();
        checkpoints.save(done);
        std::cout << "step " << done << "  loss " << loss << "\n";
      }
    } catch (const muster::Error& error) {
      if (error.code() != muster::StatusCode::kUnavailable) throw;
      std::cout << error.status().task() << " is lost, and its variables with it\n";
      cluster.start({"ps", 1});  // what an operator does, or Kubernetes
      done = checkpoints.restore().value_or(0);
      std::cout << "it is back, and training goes on after step " << done << "\n";
    }
  }
  checkpoints.wait();  // it may still remove older ones
  std::filesystem::remove_all(directory);
  return killed && loss < 0.5 ? 0 : 1;
}
