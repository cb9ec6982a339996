// Synchronous training on every worker of TF_CONFIG; `muster run --workers 4 ./multi_worker` starts it on this machine.
// Killed and started again, it goes on with the epoch after the last that it has ended.
#include <muster/muster.h>
#include <torch/torch.h>

int main() {
  muster::MultiWorkerMirroredStrategy strategy{muster::TfConfigClusterResolver()};
  torch::manual_seed(1);
  auto net = strategy.make<torch::nn::Sequential>(torch::nn::Flatten(), torch::nn::Linear(784, 128), torch::nn::ReLU(),
                                                  torch::nn::Linear(128, 10));
  auto model = muster::compile(net, {.optimizer = muster::Sgd({.learning_rate = 0.01, .momentum = 0.9}),
                                     .loss = muster::sparse_categorical_cross_entropy,
                                     .metrics = {muster::Accuracy()}});
  const muster::History history =
      model.fit(muster::Dataset::synthetic_digits().shuffle(10'000).batch(64 * strategy.num_replicas_in_sync()),
                {.epochs = 3, .callbacks = {muster::BackupAndRestore({.directory = "backup"})}});
  return history["accuracy"].back() > 0.9 ? 0 : 1;
}
