// Fine-tuning of what PyTorch has saved: pytorch/net.safetensors is a file of safetensors.torch.save_file, made by
// tests/pytorch/write_net.py with Python 3.11.7,
// PyTorch 2.10.0 and safetensors 0.8.0.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/fit/model.h"
#include "muster/train/module_weights.h"

namespace muster::model_from_pytorch_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::string kFile = MUSTER_PYTORCH_FILES "/net.safetensors";

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t classes) : head(4, classes) {
    register_module("body", body);
    register_module("head", head);
  }
  at::Tensor forward(const at::Tensor& x) { return head->forward(body->forward(x)); }
  torch::nn::Sequential body{torch::nn::Linear(6, 4), torch::nn::ReLU()};
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

TEST(ModelFromPyTorch, GivesWhatItGaveThere) {
  Net net(3);

  const LoadWeightsReport report = load_safetensors(net, kFile);
  Model model = compile(net, {.loss = sparse_categorical_cross_entropy});

  EXPECT_THAT(report.missing, IsEmpty());
  EXPECT_THAT(report.unexpected, IsEmpty());
  EXPECT_EQ(net->head->weight.scalar_type(), torch::kFloat) << "the file has bfloat16";
  const at::Tensor there = torch::tensor({0.63235188F, -0.45933533F, -1.8373728F,  //
                                          0.62488925F, -0.27083290F, -2.0763507F})
                               .view({2, 3});
  EXPECT_TRUE(torch::allclose(model.predict((torch::arange(12) / 12).view({2, 6})), there, 1e-5, 1e-6));
}

TEST(ModelFromPyTorch, IsTrainedWithAnotherHead) {
  torch::manual_seed(1);
  Net net(2);
  const auto body_alone = [](const std::string& name) {
    return name.starts_with("body.") ? std::optional(name) : std::nullopt;
  };
  const LoadWeightsReport report = load_safetensors(net, kFile, {.strict = false, .rename = body_alone});
  for (torch::Tensor& parameter : net->body->parameters()) parameter.requires_grad_(false);
  const at::Tensor body = net->body->parameters()[0].clone();
  Model model = compile(net, {.optimizer = Adam({.learning_rate = 0.05}), .loss = sparse_categorical_cross_entropy});
  const at::Tensor x = torch::randn({64, 6});
  const at::Tensor y = net->body->forward(x).detach().select(1, 0).gt(0.5).to(torch::kLong);

  const History history = model.fit({x, y}, {.epochs = 20, .verbose = 0});

  EXPECT_THAT(report.missing, ElementsAre("head.weight", "head.bias"));
  EXPECT_LT(history["loss"].back(), 0.5 * history["loss"].front());
  adopted(net).write_back();
  EXPECT_TRUE(torch::equal(net->body->parameters()[0], body));
}

}  // namespace
}  // namespace muster::model_from_pytorch_test
