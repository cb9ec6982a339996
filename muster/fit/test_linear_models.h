// Two models that every strategy has to train, and what they learn. Not part of the library.
#pragma once

#include <torch/torch.h>

#include "muster/fit/model.h"

namespace muster::testing_support {

struct WideAndDeepImpl : torch::nn::Module {
  WideAndDeepImpl() {
    register_module("wide", wide);
    register_module("deep", deep);
  }
  at::Tensor forward(const at::Tensor& x) { return wide->forward(x) + deep->forward(x); }
  torch::nn::Linear wide{2, 1};
  torch::nn::Sequential deep{torch::nn::Linear(2, 8), torch::nn::ReLU(), torch::nn::Linear(8, 1)};
};
TORCH_MODULE(WideAndDeep);

// The loss of the third epoch, of examples without noise: what is to be learned can be learned.
template <class Module>
double loss_of_third_epoch(const Strategy& strategy, const Module& module, OptimizerRule optimizer) {
  Model model = compile(strategy.make<Module>(module), {.optimizer = std::move(optimizer), .loss = mean_squared_error});
  const at::Tensor x = torch::arange(128).sin().view({64, 2}) * 5, y = x.mv(torch::tensor({0.3F, 0.2F})).unsqueeze(1);
  const Dataset examples = Dataset::tensors({x, y}).batch(10).repeat(10);
  return model.fit(examples, {.epochs = 3, .verbose = 0})["loss"].at(2);
}

inline double linear_loss(const Strategy& strategy) {
  torch::manual_seed(1);
  return loss_of_third_epoch(strategy, torch::nn::Linear(2, 1), Sgd({.learning_rate = 0.01}));
}
// The two parts have rates of their own.
inline double wide_and_deep_loss(const Strategy& strategy) {
  torch::manual_seed(1);
  return loss_of_third_epoch(
      strategy, WideAndDeep(),
      Adagrad({.learning_rate = 0.1, .all = {.groups = {{.names = "^wide", .rate_factor = 0.5}}}}));
}

}  // namespace muster::testing_support
