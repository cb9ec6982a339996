#include "muster/train/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/distribute/local_strategies.h"
#include "muster/train/optimizers.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

struct NormedNetImpl : torch::nn::Module {
  explicit NormedNetImpl(bool synchronized) {
    first = register_module("first", torch::nn::Linear(3, 4));
    last = register_module("last", torch::nn::Linear(4, 1));
    if (synchronized) {
      sync = register_module("norm", SyncBatchNorm(4));
    } else {
      norm = register_module("norm", torch::nn::BatchNorm1d(4));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = first->forward(x);
    return last->forward((sync.is_empty() ? norm->forward(hidden) : sync->forward(hidden)).relu());
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  SyncBatchNorm sync{nullptr};
};
TORCH_MODULE(NormedNet);

// The sum of the losses of all examples, as one process has it and as replicas do with shares of different sizes.
TEST(SyncBatchNorms, TrainAsOneProcessWithTheWholeBatch) {
  torch::manual_seed(3);
  NormedNet alone(false);
  const MirroredStrategy strategy(std::vector<std::string>{"/device:CPU:0", "/device:CPU:1", "/device:CPU:2"});
  auto net = strategy.make<NormedNet>(true);
  {
    torch::NoGradGuard no_gradients;
    auto from = alone->named_parameters();
    for (auto& parameter : net->named_parameters()) parameter.value().copy_(from[parameter.key()]);
  }
  adopted(net).read_module();
  const at::Tensor x = torch::randn({16, 3}) * 4 + 10, y = torch::randn({16, 1});
  constexpr int kSteps = 5;
  torch::optim::SGD plain(alone->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  for (int i = 0; i < kSteps; ++i) {
    plain.zero_grad();
    (alone->forward(x) - y).square().sum().backward();
    plain.step();
  }

  // The mean of three replicas of three times their losses.
  const Sgd sgd(adopted(net).trainable(), {.learning_rate = 0.01, .momentum = 0.9});
  auto step = function([&](at::Tensor inputs, at::Tensor targets) {
    sgd.minimize((net->forward(inputs) - targets).square().sum() * 3);
  });
  const PerReplica<at::Tensor> xs{{x.narrow(0, 0, 5), x.narrow(0, 5, 8), x.narrow(0, 13, 3)}};
  const PerReplica<at::Tensor> ys{{y.narrow(0, 0, 5), y.narrow(0, 5, 8), y.narrow(0, 13, 3)}};
  for (int i = 0; i < kSteps; ++i) strategy.run(step, xs, ys);
  adopted(net).write_back();

  auto expect_same = [](const auto& expected, const auto& actual) {
    ASSERT_EQ(expected.size(), actual.size());
    for (const auto& item : expected) {
      EXPECT_TRUE(torch::allclose(item.value(), actual[item.key()], 1e-4, 1e-4))
          << item.key() << item.value() << actual[item.key()];
    }
  };
  expect_same(alone->named_parameters(), net->named_parameters());
  expect_same(alone->named_buffers(), net->named_buffers());
  alone->eval();
  net->eval();
  EXPECT_TRUE(torch::allclose(alone->forward(x), net->forward(x), 1e-3, 1e-3));
}

TEST(SyncBatchNorms, CountABatchOnceHoweverManyReplicasShareTheStatistics) {
  const std::vector<std::string> devices{"/device:CPU:0", "/device:CPU:1"};
  const std::vector<Strategy> strategies{MirroredStrategy(devices), CentralStorageStrategy(devices)};
  for (const Strategy& strategy : strategies) {
    auto norm = strategy.make<SyncBatchNorm>(1);
    auto step = function([&](at::Tensor x) { return norm->forward(x); });

    for (int i = 0; i < 2; ++i) strategy.run(step, torch::full({1, 1}, 4.0F));

    const ModuleVariables variables = adopted(norm);
    EXPECT_EQ(variables.at("num_batches_tracked").value().item<int64_t>(), 2);
    EXPECT_FLOAT_EQ(variables.at("running_mean").value().item<float>(), 4 * (1 - 0.9F * 0.9F));
    EXPECT_FLOAT_EQ(variables.at("running_var").value().item<float>(), 0.9F * 0.9F);
  }
}

TEST(SyncBatchNorms, TakeHalfPrecisionAndASingleValue) {
  SyncBatchNorm norm(2);
  norm->to(torch::kBFloat16);

  EXPECT_TRUE(norm->forward(torch::ones({1, 2}, torch::kBFloat16)).equal(torch::zeros({1, 2}, torch::kBFloat16)));
  EXPECT_FALSE(norm->running_var.isnan().any().item<bool>());
}

TEST(SyncBatchNorms, AreThoseOfLibtorchWithoutReplicas) {
  for (const auto& options : {torch::nn::BatchNormOptions(2), torch::nn::BatchNormOptions(2).momentum(std::nullopt),
                              torch::nn::BatchNormOptions(2).affine(false).eps(0.1),
                              torch::nn::BatchNormOptions(2).track_running_stats(false)}) {
    SyncBatchNorm own(options);
    torch::nn::BatchNorm2d plain(options);
    const at::Tensor x = torch::randn({3, 2, 4, 5});
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(torch::allclose(plain->forward(x * i), own->forward(x * i), 1e-4, 1e-5));
    }
    own->eval();
    plain->eval();
    EXPECT_TRUE(torch::allclose(plain->forward(x), own->forward(x), 1e-4, 1e-5));
    try {
      own->forward(torch::ones({3}));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("expected [rows, 2"));
    }
  }
}

}  // namespace
}  // namespace muster
