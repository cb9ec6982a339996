#include "bench/models.h"

namespace muster::bench {
namespace {

// The peers' initial values: normal weights of these scales, biases of zero. libtorch's own start so close to zero that
// the CNN's loss hardly moves in 30 steps.
torch::nn::Sequential initialized(torch::nn::Sequential net, const std::vector<double>& scales) {
  torch::manual_seed(1);
  torch::NoGradGuard no_gradients;
  size_t layer = 0;
  for (torch::Tensor& parameter : net->parameters()) {
    parameter.dim() > 1 ? parameter.normal_(0, scales[layer++]) : parameter.zero_();
  }
  return net;
}

}  // namespace

torch::nn::Sequential mlp() {
  namespace nn = torch::nn;
  return initialized(nn::Sequential(nn::Linear(784, 128), nn::ReLU(), nn::Linear(128, 10)), {0.05, 0.05});
}

torch::nn::Sequential cnn() {
  namespace nn = torch::nn;
  return initialized(nn::Sequential(nn::Unflatten(nn::UnflattenOptions(1, {1, 28, 28})), nn::Conv2d(1, 32, 3),
                                    nn::ReLU(), nn::Conv2d(32, 64, 3), nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(),
                                    nn::Linear(12 * 12 * 64, 128), nn::ReLU(), nn::Linear(128, 10)),
                     {0.1, 0.05, 0.01, 0.05});
}

Pool make_pool() {
  torch::manual_seed(5);
  const torch::Tensor x = torch::rand({kPool, kBatch, 784});
  const torch::Tensor w = torch::randn({784, 10});
  return {x, torch::matmul(x - 0.5, w).argmax(-1)};
}

torch::Tensor loss_of(torch::nn::Sequential& net, const torch::Tensor& x, const torch::Tensor& y) {
  return torch::cross_entropy_loss(net->forward(x), y);
}

torch::Tensor train(torch::nn::Sequential& net, const std::vector<Variable>& variables, const torch::Tensor& x,
                    const torch::Tensor& y) {
  torch::Tensor loss = loss_of(net, x, y);
  const std::vector<torch::Tensor> gradients = gradient(loss, variables);
  torch::NoGradGuard no_gradients;
  for (size_t i = 0; i < variables.size(); ++i) variables[i].value().sub_(gradients[i], kLearningRate);
  return loss;
}

void EagerTrainer::step(const torch::Tensor& x, const torch::Tensor& y) {
  sgd_.zero_grad();
  loss_of(net_, x, y).backward();
  sgd_.step();
}

double EagerTrainer::loss(const torch::Tensor& x, const torch::Tensor& y) {
  torch::NoGradGuard no_gradients;
  return loss_of(net_, x, y).item<double>();
}

}  // namespace muster::bench
