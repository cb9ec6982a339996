// The models and data that the peers use, too.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <vector>

#include "muster/trace/module_variables.h"

namespace muster::bench {

inline constexpr int64_t kBatch = 64;
inline constexpr int64_t kPool = 64;  // different batches, made once, used in turn
inline constexpr double kLearningRate = 0.01;

torch::nn::Sequential mlp();  // 784-128-10, relu
torch::nn::Sequential cnn();  // 28x28x1, conv 3x3x32, conv 3x3x64, max pooling by 2, 128, 10, relu

// The batches in a row, x float32[64, 64, 784] and y int64[64, 64], with labels that can be learned.
struct Pool {
  torch::Tensor x, y;
};
Pool make_pool();

// Hands out the batches of a pool in turn, as views.
class Batches {
 public:
  explicit Batches(const Pool& pool) : x_(pool.x.unbind(0)), y_(pool.y.unbind(0)) {}

  template <class Step>
  void feed(int steps, const Step& step) {
    for (int i = 0; i < steps; ++i, next_ = (next_ + 1) % x_.size()) step(x_[next_], y_[next_]);
  }
  // The mean of a loss over a quarter of the batches: after a few steps the loss of a single batch may well have risen.
  template <class Loss>
  double mean(const Loss& loss) const {
    double sum = 0;
    for (size_t i = 0; i < x_.size(); i += 4) sum += loss(x_[i], y_[i]);
    return sum / (static_cast<double>(x_.size()) / 4);
  }

 private:
  std::vector<torch::Tensor> x_, y_;
  size_t next_ = 0;
};

torch::Tensor loss_of(torch::nn::Sequential& net, const torch::Tensor& x, const torch::Tensor& y);

// One step of gradient descent, for use inside a traced function.
torch::Tensor train(torch::nn::Sequential& net, const std::vector<Variable>& variables, const torch::Tensor& x,
                    const torch::Tensor& y);

// The same with libtorch alone.
class EagerTrainer {
 public:
  explicit EagerTrainer(torch::nn::Sequential net) : net_(std::move(net)), sgd_(net_->parameters(), kLearningRate) {}

  void step(const torch::Tensor& x, const torch::Tensor& y);
  double loss(const torch::Tensor& x, const torch::Tensor& y);

 private:
  torch::nn::Sequential net_;
  torch::optim::SGD sgd_;
};

}  // namespace muster::bench
