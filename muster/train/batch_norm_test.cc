#include "muster/train/batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/distribute/local_strategies.h"
#include "muster/train/optimizers.h"
#include "muster/train/sync_batch_norm.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kThreeDevices{"/device:CPU:0", "/device:CPU:1", "/device:CPU:2"};

template <class Norm>
struct NetWithImpl : torch::nn::Module {
  NetWithImpl() {
    first = register_module("first", torch::nn::Linear(3, 4));
    norm = register_module("norm", Norm(4));
    last = register_module("last", torch::nn::Linear(4, 1));
  }
  at::Tensor forward(const at::Tensor& x) { return last->forward(norm->forward(first->forward(x)).relu()); }

  torch::nn::Linear first{nullptr}, last{nullptr};
  Norm norm{nullptr};
};

using NetByReplicaImpl = NetWithImpl<BatchNorm>;
TORCH_MODULE(NetByReplica);
using NetByAllImpl = NetWithImpl<SyncBatchNorm>;
TORCH_MODULE(NetByAll);

TEST(BatchNorms, AreThoseOfLibtorchWhereThatHasThem) {
  for (const auto& options : {torch::nn::BatchNormOptions(2), torch::nn::BatchNormOptions(2).momentum(std::nullopt),
                              torch::nn::BatchNormOptions(2).affine(false).eps(0.1)}) {
    BatchNorm own(options);
    torch::nn::BatchNorm2d plain(options);
    const at::Tensor x = torch::randn({3, 2, 4, 5});
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(plain->forward(x * i).equal(own->forward(x * i)));
    own->eval();
    plain->eval();
    EXPECT_TRUE(plain->forward(x).equal(own->forward(x)));
    EXPECT_TRUE(plain->forward(x.narrow(0, 0, 1)).equal(own->forward(x.narrow(0, 0, 1))));
  }
}

TEST(BatchNorms, TakeASingleRowForOneWithoutVariance) {
  BatchNorm norm(2);
  const at::Tensor row = torch::tensor({{3.0F, -5.0F}}).requires_grad_();

  const at::Tensor result = norm->forward(row);
  result.sum().backward();

  EXPECT_TRUE(result.equal(torch::zeros({1, 2})));
  EXPECT_TRUE(torch::allclose(norm->running_mean, torch::tensor({0.3F, -0.5F})));
  EXPECT_TRUE(torch::allclose(norm->running_var, torch::full({2}, 0.9F)));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
  EXPECT_TRUE(row.grad().equal(torch::zeros({1, 2})));
  EXPECT_TRUE(norm->bias.grad().equal(torch::ones({2})));
  EXPECT_TRUE(norm->weight.grad().equal(torch::zeros({2})));
}

TEST(BatchNorms, CountASingleRowLikeOtherBatchesWithoutAMomentum) {
  BatchNorm norm(torch::nn::BatchNormOptions(1).momentum(std::nullopt));

  norm->forward(torch::full({1, 1}, 2.0F));
  norm->forward(torch::full({1, 1}, 6.0F));

  EXPECT_FLOAT_EQ(norm->running_mean.item<float>(), 4);
  EXPECT_FLOAT_EQ(norm->running_var.item<float>(), 0);
}

TEST(BatchNorms, LearnNothingFromABatchWithoutRows) {
  BatchNorm norm(2);

  const at::Tensor result = norm->forward(torch::empty({0, 2, 3}));

  EXPECT_EQ(result.sizes(), (std::vector<int64_t>{0, 2, 3}));
  EXPECT_TRUE(norm->running_mean.equal(torch::zeros({2})));
  EXPECT_TRUE(norm->running_var.equal(torch::ones({2})));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
}

TEST(BatchNorms, SayWhatTheyTake) {
  BatchNorm norm(2);
  try {
    norm->forward(torch::ones({3, 5}));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.status().message(), HasSubstr("BatchNorm of 2 features got float32[3, 5]"));
  }
}

// Shares of two rows, of one and of none: the sum of the losses, so that who has none adds none.
template <class Net>
void train_with_small_shares() {
  torch::manual_seed(3);
  const MirroredStrategy strategy(kThreeDevices);
  auto net = strategy.make<Net>();
  const Sgd sgd(adopted(net).trainable(), {.learning_rate = 0.01});
  auto step = function([&](at::Tensor x, at::Tensor y) {
    const at::Tensor loss = (net->forward(x) - y).square().sum();
    sgd.minimize(loss);
    return loss;
  });
  const at::Tensor x = torch::randn({3, 3}), y = torch::randn({3, 1});
  const PerReplica<at::Tensor> xs{{x.narrow(0, 0, 2), x.narrow(0, 2, 1), x.narrow(0, 0, 0)}};
  const PerReplica<at::Tensor> ys{{y.narrow(0, 0, 2), y.narrow(0, 2, 1), y.narrow(0, 0, 0)}};

  for (int i = 0; i < 3; ++i) strategy.run(step, xs, ys);
  adopted(net).write_back();

  for (const auto& parameter : net->named_parameters()) {
    EXPECT_TRUE(parameter.value().isfinite().all().template item<bool>()) << parameter.key();
  }
  for (const auto& buffer : net->named_buffers()) {
    EXPECT_TRUE(buffer.value().isfinite().all().template item<bool>()) << buffer.key();
  }
}

TEST(BatchNorms, TrainReplicasWithOneRowAndWithNone) { train_with_small_shares<NetByReplica>(); }

TEST(BatchNorms, OfAllReplicasTrainThoseWithOneRowAndWithNone) { train_with_small_shares<NetByAll>(); }

}  // namespace
}  // namespace muster
