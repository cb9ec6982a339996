// Takes the weights of a net that knows digits, puts another head on it, and trains the head alone:
//   fine_tune [MODEL [WEIGHTS]]
// WEIGHTS is what Python has saved: safetensors.torch.save_file(net.state_dict(), WEIGHTS). Without it the net is
// trained here first. MODEL is written, for examples/serve and `muster run-model`.
#include <torch/torch.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "muster/muster.h"

struct DigitsImpl : torch::nn::Module {
  explicit DigitsImpl(int64_t classes) : head(64, classes) {
    register_module("body", body);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) { return head->forward(body->forward(x)); }
  torch::nn::Sequential body{torch::nn::Linear(784, 64), torch::nn::ReLU()};
  torch::nn::Linear head;
};
TORCH_MODULE(Digits);

muster::CompileOptions classification(double learning_rate) {
  return {.optimizer = muster::Adam({.learning_rate = learning_rate}),
          .loss = muster::sparse_categorical_cross_entropy,
          .metrics = {muster::Accuracy()}};
}

int main(int argc, char** argv) {
  torch::manual_seed(1);
  const std::string folder = std::filesystem::temp_directory_path() / ("fine_tune_" + std::to_string(getpid()));
  std::filesystem::create_directory(folder);
  const std::string exported = argc > 1 ? argv[1] : folder + "/odd.safetensors";
  const std::string weights = argc > 2 ? argv[2] : folder + "/digits.safetensors";
  const auto digits = muster::Dataset::synthetic_digits(5'000).shuffle(5'000).batch(64);
  if (argc <= 2) {
    Digits all_digits(10);
    muster::compile(all_digits, classification(0.001)).fit(digits, {.epochs = 3});
    muster::save_safetensors(all_digits, weights);
  }

  // Odd or even: another question about the same pictures. The head of the file has ten classes and stays there.
  Digits odd(2);
  const auto body_alone = [](const std::string& name) {
    return name.starts_with("body.") ? std::optional(name) : std::nullopt;
  };
  muster::load_safetensors(odd, weights, {.strict = false, .rename = body_alone});
  for (torch::Tensor& parameter : odd->body->parameters()) parameter.requires_grad_(false);
  auto model = muster::compile(odd, classification(0.01));
  const auto parity = [](torch::Tensor x, torch::Tensor y) { return std::tuple(x, y.remainder(2)); };
  model.fit(digits.map(parity), {.epochs = 5});
  const auto others = muster::Dataset::synthetic_digits(1'000, /*seed=*/99).batch(64).map(parity);
  const double accuracy = model.evaluate(others)["accuracy"];
  std::cout << "tells odd from even in " << 100 * accuracy << " % of digits that it has not seen\n";

  muster::export_model(model, exported, {torch::zeros({1, 784})}, {.name = "odd", .inputs = {"picture"}});
  const auto served = muster::LoadedModel::load(exported);
  const torch::Tensor x = torch::rand({8, 784});
  const bool same = torch::allclose(served(x), model.predict(muster::Dataset::from_tensors({x})), 1e-4, 1e-5);
  std::filesystem::remove_all(folder);
  return same && accuracy > 0.85 ? EXIT_SUCCESS : EXIT_FAILURE;
}
