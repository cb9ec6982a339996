// Synchronous training on every worker of TF_CONFIG; `muster run --workers 4 ./multi_worker` starts it on this machine.
// All save together, and the chief tells and writes for all. Killed and started again, it goes on with the epoch after
// the last that it has ended; `--dies-in-epoch 2` kills the last worker there, to see that.
#include <muster/muster.h>
#include <torch/torch.h>

#include <csignal>
#include <iostream>

int train(int dies_in_epoch) {
  const auto cluster = muster::TfConfigClusterResolver();
  muster::MultiWorkerMirroredStrategy strategy{cluster};
  const int replicas = strategy.num_replicas_in_sync();
  torch::manual_seed(1);
  auto net = strategy.make<torch::nn::Sequential>(torch::nn::Flatten(), torch::nn::Linear(784, 128), torch::nn::ReLU(),
                                                  torch::nn::Linear(128, 10));
  auto model = muster::compile(net, {.optimizer = muster::Sgd({.learning_rate = 0.01, .momentum = 0.9}),
                                     .loss = muster::sparse_categorical_cross_entropy,
                                     .metrics = {muster::Accuracy()}});
  const auto accident = [&](muster::Training& training) {
    const bool last = muster::id_in_cluster(cluster.cluster_spec(), cluster.task().value()) == replicas - 1;
    if (last && training.epoch + 1 == dies_in_epoch) std::raise(SIGKILL);
  };
  const auto digits = muster::Dataset::synthetic_digits().shuffle(10'000).batch(64 * replicas);
  const muster::History history = model.fit(
      digits,
      {.epochs = 3,
       .callbacks = {muster::BackupAndRestore({.directory = "backup"}),  // goes away when the training has ended
                     muster::ModelCheckpoint({.directory = "checkpoints"}), muster::TensorBoard({.directory = "logs"}),
                     muster::CsvLogger("epochs.csv"), muster::LambdaCallback({.on_epoch_begin = accident})}});
  if (strategy.is_chief()) {
    muster::save_safetensors(net, "digits.safetensors");
    std::cout << "the chief of " << replicas << " has written digits.safetensors\n";
  }
  return history["accuracy"].back() > 0.9 ? 0 : 1;
}

int main(int argc, char** argv) {
  try {
    return train(argc == 3 && std::string(argv[1]) == "--dies-in-epoch" ? std::stoi(argv[2]) : 0);
  } catch (const std::exception& error) {
    std::cerr << "multi_worker: " << error.what() << "\n";
    return 1;
  }
}
