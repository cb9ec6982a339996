#include "muster/fit/autocast.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/fit/model.h"
#include "muster/trace/function.h"
#include "muster/trace/module_variables.h"
#include "muster/train/optimizers.h"

namespace muster::autocast_test {
namespace {

TEST(Autocast, DoesInALoopOfOnesOwnWhatMixedPrecisionDoes) {
  const at::Tensor x = torch::randn({32, 3}), y = torch::randn({32, 1});
  auto seeded = [] {
    torch::manual_seed(3);
    return torch::nn::Linear(3, 1);
  };
  auto by_itself = seeded();
  const ModuleVariables variables = adopt(by_itself);
  const Sgd sgd(by_itself, {.learning_rate = 0.1});
  auto step = function([&](const at::Tensor& inputs, const at::Tensor& target) {
    at::Tensor output;
    {
      const Autocast autocast;
      const Autocast again;
      output = by_itself->forward(inputs);
      EXPECT_EQ(output.scalar_type(), torch::kBFloat16);
    }
    const at::Tensor loss = (output.to(torch::kFloat) - target).square().mean();
    sgd.minimize(loss);
    return loss;
  });
  Model model = compile(
      seeded(), {.optimizer = Sgd({.learning_rate = 0.1}), .loss = mean_squared_error, .mixed_precision = true});

  for (int i = 0; i < 3; ++i) {
    // The sum of the losses of an epoch is in float64.
    EXPECT_FLOAT_EQ(static_cast<float>(model.train_on_batch({x, y})["loss"]), step(x, y).item<float>());
  }
  EXPECT_TRUE(torch::equal(model.variables().all()[0].value(), variables.all()[0].value()));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

}  // namespace
}  // namespace muster::autocast_test
