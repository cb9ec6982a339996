#include <torch/torch.h>

#include <iostream>

#include "muster/muster.h"

int main() {
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::Tanh(), torch::nn::Linear(32, 1));
  auto variables = muster::adopt(net);  // from now on the net's parameters are variables

  // Traced at its first call, with everything that autograd does; later calls run the recorded program.
  auto step = muster::function([&](torch::Tensor x, torch::Tensor y) {
    torch::Tensor loss = torch::mse_loss(net->forward(x), y);
    auto trained = variables.trainable();
    auto gradients = muster::gradient(loss, trained);
    for (size_t i = 0; i < trained.size(); ++i) trained[i].assign_sub(0.1 * gradients[i]);
    return loss;
  });

  for (int i = 1; i <= 2000; ++i) {
    torch::Tensor x = torch::rand({64, 2}) * 2 - 1;
    torch::Tensor loss = step(x, x.prod(1, /*keepdim=*/true));
    if (i % 500 == 0) std::cout << "step " << i << "  loss " << loss.item<float>() << "\n";
  }

  variables.write_back();  // the trained values, for use without Muster
  std::cout << "0.5 * -0.8 is about " << net->forward(torch::tensor({{0.5, -0.8}})).item<float>() << "\n";
  std::cout << "traced " << step.stats().misses << " time, replayed " << step.stats().hits << " times\n";
}
