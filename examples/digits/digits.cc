// The same CNN, trained by fit under every strategy and without one. With a folder it goes on from the newest
// checkpoint there, whichever strategy has left it, and leaves one after each epoch.
//   digits --strategy mirrored [--epochs 6] [--checkpoints DIR]
//   muster run --workers 2 digits --strategy multi_worker
//   muster run --workers 2 --ps 1 --storage DIR digits --strategy parameter_server --checkpoints DIR
// examples/digits/run does so with all of them, and compares.
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>
#include <map>

#include "muster/muster.h"

namespace {

constexpr int kEpochs = 6;
const std::vector<std::string> kDevices{"/device:CPU:0", "/device:CPU:1"};

muster::Strategy strategy_named(const std::string& name) {
  if (name == "none") return {};
  if (name == "one_device") return muster::OneDeviceStrategy(kDevices[1]);
  if (name == "mirrored") return muster::MirroredStrategy(kDevices);
  if (name == "central_storage") return muster::CentralStorageStrategy(kDevices, /*parameter_device=*/kDevices[0]);
  const auto cluster = muster::TfConfigClusterResolver();  // the task that TF_CONFIG describes, as `muster run` sets it
  if (name == "multi_worker") return muster::MultiWorkerMirroredStrategy(cluster);
  if (name == "parameter_server") return muster::ParameterServerStrategy(cluster);
  throw std::invalid_argument(
      "--strategy " + name +
      ": expected none, one_device, mirrored, central_storage, multi_worker or parameter_server");
}

torch::nn::Sequential cnn() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Unflatten(1, std::vector<int64_t>{1, 28, 28}),
                               torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1)), torch::nn::ReLU(),
                               torch::nn::MaxPool2d(2),
                               torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).padding(1)), torch::nn::ReLU(),
                               torch::nn::MaxPool2d(2), torch::nn::Flatten(), torch::nn::Linear(16 * 7 * 7, 10));
}

// More noise, made of the noise that a picture has, so that it is the same wherever the picture is read.
std::tuple<torch::Tensor, torch::Tensor> with_more_noise(const torch::Tensor& x, const torch::Tensor& y) {
  return {x + (7919 * x).frac() - 0.5, y};
}

void run(const std::string& name, int epochs, const std::string& directory) {
  const muster::Strategy strategy = strategy_named(name);
  auto model = muster::compile(
      strategy.make<torch::nn::Sequential>(cnn()),
      {.optimizer = muster::Adam({.learning_rate = muster::cosine_decay(0.003, /*decay_steps=*/kEpochs * 64)}),
       .loss = muster::sparse_categorical_cross_entropy,
       .metrics = {muster::Accuracy()}});
  const auto training =
      muster::Dataset::synthetic_digits(64 * 64).shuffle(64 * 64, /*seed=*/1).batch(64).map(with_more_noise);
  const auto test = muster::Dataset::synthetic_digits(2'048, /*seed=*/99).batch(256).map(with_more_noise);
  auto tell = [&](const std::string& when) {
    const double accuracy = model.evaluate(test).at("accuracy");
    const int64_t step = model.optimizer().iterations();
    if (strategy.is_chief()) std::cout << name << when << "  step " << step << "  test_accuracy " << accuracy << "\n";
  };

  muster::Callbacks callbacks;
  if (!directory.empty()) {
    if (muster::Checkpoints(strategy, {.directory = directory}).restore({.may_be_none = true})) tell(" found");
    callbacks.add(muster::ModelCheckpoint({.directory = directory}));
  }
  model.fit(training, {.epochs = epochs, .callbacks = callbacks, .verbose = 0});
  tell(" left");
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> flags{
      {"--strategy", "none"}, {"--epochs", std::to_string(kEpochs)}, {"--checkpoints", ""}};
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc || !flags.contains(argv[i])) {
      std::cerr << "usage: digits [--strategy none|one_device|mirrored|central_storage|multi_worker|parameter_server]\n"
                   "              [--epochs N] [--checkpoints DIR]\n";
      return 2;
    }
    flags[argv[i]] = argv[i + 1];
  }
  try {
    muster::set_local_options({.devices = {.cpus = 2}});
    run(flags["--strategy"], std::stoi(flags["--epochs"]), flags["--checkpoints"]);
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::cerr << "digits: " << error.what() << "\n";
    return EXIT_FAILURE;
  }
}
