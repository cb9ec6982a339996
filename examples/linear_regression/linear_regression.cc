// Finds the line that noisy points were drawn from: with two variables and a loop, and the same by compile and fit.
#include <muster/muster.h>
#include <torch/torch.h>

#include <cmath>
#include <iostream>

namespace {

constexpr double kSlope = 3, kOffset = 2;

struct Line {
  double slope, offset;
};

Line by_loop(const torch::Tensor& x, const torch::Tensor& y) {
  muster::Variable w(torch::zeros({})), b(torch::zeros({}));
  auto step = muster::function([&](torch::Tensor inputs, torch::Tensor targets) {
    torch::Tensor loss = (inputs * w.value() + b.value() - targets).square().mean();
    auto [dw, db] = std::tuple(muster::gradient(loss, w), muster::gradient(loss, b));
    w.assign_sub(0.1 * dw);
    b.assign_sub(0.1 * db);
    return loss;
  });
  for (int i = 1; i <= 40; ++i) {
    torch::Tensor loss = step(x, y);
    if (i % 10 == 0) std::cout << "step " << i << "  loss " << loss.item<float>() << "\n";
  }
  return {w.value().item<double>(), b.value().item<double>()};
}

Line by_fit(const torch::Tensor& x, const torch::Tensor& y) {
  torch::nn::Linear line(1, 1);
  auto model =
      muster::compile(line, {.optimizer = muster::Sgd({.learning_rate = 0.1}), .loss = muster::mean_squared_error});
  model.fit({x, y}, {.epochs = 10, .batch_size = 100, .verbose = 0});
  muster::adopted(line).write_back();
  return {line->weight.item<double>(), line->bias.item<double>()};
}

bool right(const char* how, const Line& line) {
  std::cout << how << ": y = " << line.slope << " x + " << line.offset << "\n";
  return std::abs(line.slope - kSlope) < 0.1 && std::abs(line.offset - kOffset) < 0.1;
}

}  // namespace

int main() {
  torch::manual_seed(1);
  const torch::Tensor x = torch::randn({1'000, 1}), y = kSlope * x + kOffset + torch::randn({1'000, 1});
  const bool loop = right("by a loop", by_loop(x, y)), fit = right("by fit", by_fit(x, y));
  return loop && fit ? 0 : 1;
}
