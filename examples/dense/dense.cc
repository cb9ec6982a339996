// The smallest model that fit trains: a dense layer with ten outputs, on parameter servers, ten steps as one program,
// with callbacks between epochs.
//   dense [the folder for checkpoints and logs]
#include <muster/muster.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>

int main(int argc, char** argv) {
  const auto temporary = std::filesystem::temp_directory_path() / ("muster-dense-" + std::to_string(getpid()));
  const std::string folder = argc > 1 ? std::filesystem::absolute(argv[1]).string() : temporary.string();
  std::filesystem::create_directories(folder);
  // Servers write checkpoints only where whoever starts them allows it.
  muster::InProcessCluster cluster({.workers = 2, .ps = 1, .worker = {.storage = {folder}}});
  muster::ParameterServerStrategy strategy(cluster.resolver());

  torch::manual_seed(1);
  auto model =
      muster::compile(strategy.make<torch::nn::Linear>(10, 10), {.optimizer = muster::Sgd({.learning_rate = 0.1}),
                                                                 .loss = muster::mean_squared_error,
                                                                 .steps_per_execution = 10});
  const torch::Tensor x = torch::randn({1'000, 10}), y = torch::matmul(x, torch::randn({10, 10}));
  const muster::History history = model.fit(
      [&](muster::InputContext input) {
        return muster::Dataset::tensors({x, y}).shard(input).shuffle(1'000).repeat().batch(50).prefetch(2);
      },
      {.epochs = 20,
       .steps_per_epoch = 50,
       .callbacks = {muster::TensorBoard({.directory = folder + "/logs"}),
                     muster::ModelCheckpoint({.directory = folder + "/checkpoints"}),
                     muster::BackupAndRestore({.directory = folder + "/backup"}),
                     muster::EarlyStopping({.monitor = "loss", .min_delta = 1e-4})},
       .verbose = 2});

  std::cout << "the mean squared error of an epoch was " << history["loss"].front() << ", and is "
            << history["loss"].back() << " after " << history.epochs().size() << "\n";
  if (argc == 1) std::filesystem::remove_all(temporary);
  return history["loss"].back() < 0.01 ? 0 : 1;
}
