#include "muster/fit/layer_shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/fit/forward.h"

namespace muster::layer_shapes_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

template <class Net>
std::map<std::string, std::string> shapes_in(Net net, const at::Tensor& x) {
  const ModuleVariables variables = adopt(net);
  return shapes_of_layers(variables, Features({"x"}, {x}), outputs_of(net->forward(x)));
}

TEST(LayerShapes, AreThoseOfTheOpsThatTakeTheParameters) {
  const torch::nn::Sequential net(torch::nn::Conv2d(1, 2, 3), torch::nn::BatchNorm2d(2), torch::nn::ReLU(),
                                  torch::nn::Flatten(), torch::nn::Linear(2 * 6 * 6, 5));

  EXPECT_THAT(shapes_in(net, torch::ones({4, 1, 8, 8})),
              ElementsAre(Pair("0", "[batch, 2, 6, 6]"), Pair("1", "[batch, 2, 6, 6]"), Pair("4", "[batch, 5]")));
}

TEST(LayerShapes, HaveAllDimensionsOfProducts) {
  const torch::nn::Sequential net(torch::nn::Embedding(10, 3), torch::nn::Linear(3, 5),
                                  torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})),
                                  torch::nn::Linear(torch::nn::LinearOptions(5, 2).bias(false)), torch::nn::Flatten());

  EXPECT_THAT(shapes_in(net, torch::zeros({4, 7}, torch::kLong)),
              ElementsAre(Pair("0", "[batch, 7, 3]"), Pair("1", "[batch, 7, 5]"), Pair("2", "[batch, 7, 5]"),
                          Pair("3", "[batch, 7, 2]")));
}

TEST(LayerShapes, AreOfAModuleThatIsOneLayer) {
  EXPECT_THAT(shapes_in(torch::nn::Linear(3, 5), torch::ones({4, 3})), ElementsAre(Pair("", "[batch, 5]")));
}

// Calls a layer twice, for results of as many dimensions as `same` says.
struct TwiceImpl : torch::nn::Module {
  explicit TwiceImpl(bool same) : same_shape(same) {}
  at::Tensor forward(const at::Tensor& x) {
    return layer->forward(x).sum() + layer->forward(same_shape ? x * 2 : x.unsqueeze(1)).sum();
  }

  bool same_shape;
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(3, 5))};
};
TORCH_MODULE(Twice);

TEST(LayerShapes, AreOfALayerThatIsCalledTwiceIfBothAreTheSame) {
  EXPECT_THAT(shapes_in(Twice(true), torch::ones({4, 3})), ElementsAre(Pair("layer", "[batch, 5]")));
  EXPECT_THAT(shapes_in(Twice(false), torch::ones({4, 3})), IsEmpty());
}

// Two ops have parameters of one part, and neither of them all.
struct ScaledImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return (x.matmul(weight) * scale).sum(1); }

  at::Tensor weight{register_parameter("weight", torch::ones({3, 5}))};
  at::Tensor scale{register_parameter("scale", torch::ones({5}))};
};
TORCH_MODULE(Scaled);

// Its own parameters are not all that it has.
struct ShiftedImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return layer->forward(x + shift); }

  at::Tensor shift{register_parameter("shift", torch::ones({3}))};
  torch::nn::Linear layer{register_module("layer", torch::nn::Linear(3, 5))};
};
TORCH_MODULE(Shifted);

struct RecurrentImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return std::get<0>(layer->forward(x)); }

  torch::nn::LSTM layer{register_module("layer", torch::nn::LSTM(torch::nn::LSTMOptions(3, 5).batch_first(true)))};
};
TORCH_MODULE(Recurrent);

TEST(LayerShapes, AreNotGuessed) {
  torch::nn::Linear frozen(3, 5);
  for (at::Tensor& parameter : frozen->parameters()) parameter.requires_grad_(false);

  EXPECT_THAT(shapes_in(Scaled(), torch::ones({4, 3})), IsEmpty());
  EXPECT_THAT(shapes_in(Shifted(), torch::ones({4, 3})), ElementsAre(Pair("layer", "[batch, 5]")));
  EXPECT_THAT(shapes_in(frozen, torch::ones({4, 3})), IsEmpty());
  EXPECT_THAT(shapes_in(Recurrent(), torch::ones({4, 7, 3})), IsEmpty()) << "inside, the time is first";
}

}  // namespace
}  // namespace muster::layer_shapes_test
