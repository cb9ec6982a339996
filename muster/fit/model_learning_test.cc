// What fit() learns, whatever the strategy. That of several workers needs processes: tests/in_step_test.py.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/fit/model.h"
#include "muster/fit/test_linear_models.h"

namespace muster::model_learning_test {
namespace {

using testing_support::linear_loss;
using testing_support::wide_and_deep_loss;

// The losses that both models have in the third epoch.
void expect_learned(const Strategy& strategy) {
  EXPECT_LT(linear_loss(strategy), 0.2);
  EXPECT_LT(wide_and_deep_loss(strategy), 0.2);
}

const std::vector<std::string> kTwoDevices{"/device:CPU:0", "/device:CPU:1"};

TEST(LinearModels, LearnWithoutAStrategy) { expect_learned({}); }

TEST(LinearModels, LearnOnOneDevice) { expect_learned(OneDeviceStrategy("/device:CPU:1")); }

TEST(LinearModels, LearnOnTwoDevices) { expect_learned(MirroredStrategy(kTwoDevices)); }

TEST(LinearModels, LearnInCentralStorage) { expect_learned(CentralStorageStrategy(kTwoDevices)); }

TEST(LinearModels, LearnOnParameterServers) {
  const InProcessCluster cluster({.workers = 2, .ps = 2, .transport = Transport::kLocal});

  expect_learned(testing_support::strategy_of(cluster, Transport::kLocal));
  // And where variables are in parts.
  expect_learned(testing_support::strategy_of(cluster, Transport::kLocal,
                                              {.partitioner = FixedShardsPartitioner{.num_shards = 2}}));
}

// As loops of Keras and PyTorch that accumulate gradients: it is not the step of one batch of all rows.
TEST(Fit, CountsBatchesOfAStepAlikeHoweverManyRowsTheyHave) {
  const at::Tensor x = torch::arange(1, 8).to(torch::kFloat).unsqueeze(1), y = torch::ones({7, 1});
  torch::nn::Linear line(torch::nn::LinearOptions(1, 1).bias(false));
  {
    const torch::NoGradGuard no_gradients;
    line->weight.zero_();
  }
  Model model = compile(line, {.optimizer = Sgd({.learning_rate = 0.1}), .loss = mean_squared_error, .accumulate = 3});

  const History history = model.fit({x, y}, {.batch_size = 3, .shuffle = false, .verbose = 0});

  // Slopes of -4, -10 and, of the last row, -14.
  EXPECT_NEAR(model.variables().all()[0].value().item<float>(), 0.1 * (4 + 10 + 14) / 3, 1e-5);
  EXPECT_NEAR(history["loss"].back(), 1, 1e-6);
}

}  // namespace
}  // namespace muster::model_learning_test
