// A small model, its data and a directory, for the tests of callbacks. Not part of the library.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"
#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/model.h"

namespace muster::testing_support {

class CallbacksTest : public ::testing::Test {
 protected:
  Model model(double learning_rate = 0.1) {
    torch::manual_seed(1);
    return compile(torch::nn::Linear(2, 1),
                   {.optimizer = Adam({.learning_rate = learning_rate}), .loss = mean_squared_error});
  }
  std::string in(const std::string& name) const { return directory_.path() + "/" + name; }
  static double weight_of(const Model& model) { return model.variables().all()[0].value()[0][0].item<double>(); }

  const ScopedDirectory directory_;
  const at::Tensor x_ = (torch::manual_seed(2), torch::randn({32, 2})), y_ = x_.sum(1);
  const Dataset data_ = Dataset::tensors({x_, y_}).batch(8);
};

// A job that is lost at the beginning of an epoch.
inline LambdaCallback dies_in(int epoch) {
  return LambdaCallback({.on_epoch_begin = [epoch](Training& training) {
    if (training.epoch == epoch) throw aborted("lost");
  }});
}

}  // namespace muster::testing_support
