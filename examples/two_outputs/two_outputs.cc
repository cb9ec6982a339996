// A net that says of a picture which digit it shows and where its ink is: one body, two outputs, each with a loss and a
// metric of its own.
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

#include "muster/muster.h"

namespace {

constexpr int64_t kSide = 28;

struct DetectorImpl : torch::nn::Module {
  DetectorImpl() {
    register_module("body", body);
    register_module("digit", digit);
    register_module("place", place);
  }
  muster::Features forward(const torch::Tensor& picture) {
    const torch::Tensor seen = torch::relu(body->forward(picture));
    return {{"digit", "place"}, {digit->forward(seen), place->forward(seen)}};
  }
  torch::nn::Linear body{kSide * kSide, 128}, digit{128, 10}, place{128, 2};
};
TORCH_MODULE(Detector);

// Pictures, digits, and the mean row and column of the ink, from 0 to 1.
muster::Dataset pictures(int64_t count, uint64_t seed) {
  auto with_place = [](const torch::Tensor& picture, const torch::Tensor& digit) {
    const torch::Tensor ink = (picture / picture.sum(1, /*keepdim=*/true)).reshape({-1, kSide, kSide});
    const torch::Tensor numbers = torch::arange(kSide, torch::kFloat) / kSide;
    const torch::Tensor place = torch::stack({ink.sum(2).mv(numbers), ink.sum(1).mv(numbers)}, 1);
    return std::tuple(picture, digit, place);
  };
  return muster::Dataset::synthetic_digits(count, seed)
      .batch(64)
      .map(with_place)
      .named({"picture", "digit", "place"})
      .labels({"digit", "place"});
}

}  // namespace

int main() {
  torch::manual_seed(1);
  auto model = muster::compile(
      Detector(), {.optimizer = muster::Adam({.learning_rate = 0.001}),
                   .loss = {{"digit", muster::sparse_categorical_cross_entropy}, {"place", muster::mean_squared_error}},
                   .loss_weights = {{"place", 10}},
                   .metrics = {{"digit", muster::Accuracy()}, {"place", muster::MeanAbsoluteError()}}});
  model.fit(pictures(5'000, 0), {.epochs = 3, .validation_data = pictures(1'000, 99)});
  std::cout << "\n" << model.summary();

  const muster::Features said = model.predict_all(pictures(1, 7));
  std::cout << "\ndigit " << said["digit"].argmax(1).item<int64_t>() << ", its ink around row "
            << kSide * said["place"][0][0].item<double>() << ", column " << kSide * said["place"][0][1].item<double>()
            << "\n";
  const muster::Logs logs = model.evaluate(pictures(1'000, 99));
  return logs.at("digit_accuracy") > 0.9 && logs.at("place_mean_absolute_error") < 0.02 ? EXIT_SUCCESS : EXIT_FAILURE;
}
