#include "muster/fit/forward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <optional>

#include "muster/base/test_errors.h"
#include "muster/fit/model.h"

namespace muster::forward_test {
namespace {

using testing_support::message_of;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct WithSwitch : torch::nn::Module {
  at::Tensor forward(at::Tensor x, bool twice = false) { return twice ? x * 2 : x; }
};
struct WithMask : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, std::optional<at::Tensor> mask = {}, double scale = 1) {
    const at::Tensor y = top->forward(x) * scale;
    return mask ? y * *mask : y;
  }
  torch::nn::Linear top{register_module("top", torch::nn::Linear(2, 1))};
};
struct WithMaskAndOffset : WithMask {
  at::Tensor forward(const at::Tensor& x, std::optional<at::Tensor> mask = {}, std::optional<at::Tensor> offset = {}) {
    const at::Tensor y = WithMask::forward(x, mask);
    return offset ? y + *offset : y;
  }
};
struct WithoutDefault : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x, std::optional<at::Tensor> mask) { return mask ? x * *mask : x; }
};
struct Overloaded : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y, const at::Tensor& z) const { return x + y + z; }
};
struct OfAnyType : torch::nn::Module {
  template <class T>
  auto forward(const T& x) {
    return std::make_pair(x, x * 2);
  }
};
struct ByName : torch::nn::Module {
  at::Tensor forward(const Features& features, double scale = 3) { return features["x"] * scale; }
};
struct OfNumbers : torch::nn::Module {
  at::Tensor forward(double x) { return torch::full({}, x); }
};

Features some(size_t count) {
  return {std::vector<std::string>(count), std::vector<at::Tensor>(count, torch::ones({2}))};
}

// The sum of what is in the first output.
template <class Module>
double sum_of(const Features& inputs) {
  return forward_of(std::make_shared<Module>())(inputs).tensors()[0].sum().template item<double>();
}

template <class Module>
InputsTaken taken() {
  return forward_internal::inputs_taken<Module>();
}

TEST(Forward, IsCalledWithoutWhatHasADefault) {
  EXPECT_EQ(sum_of<WithSwitch>(some(1)), 2);
  EXPECT_EQ(taken<WithSwitch>().most, 1u) << "a tensor is no bool";
  EXPECT_EQ(sum_of<ByName>({{"x"}, {torch::ones({2})}}), 6);
  EXPECT_TRUE(taken<ByName>().by_name);
}

TEST(Forward, TakesTensorsThatHaveADefaultWhereTheyAreGiven) {
  const auto net = std::make_shared<WithMask>();
  const Forward forward = forward_of(net);
  const at::Tensor x = torch::ones({4, 2}), mask = torch::tensor({1.0F, 0.0F, 1.0F, 0.0F}).unsqueeze(1);
  const at::Tensor expected = net->forward(x).detach();

  EXPECT_TRUE(forward({{""}, {x}}).tensors()[0].equal(expected));
  EXPECT_TRUE(forward({{"", ""}, {x, mask}}).tensors()[0].equal(expected * mask));

  EXPECT_EQ(taken<WithMask>().count, 1u);
  EXPECT_EQ(taken<WithMask>().most, 2u);
  EXPECT_EQ(taken<WithoutDefault>().count, 2u);
  EXPECT_EQ(sum_of<WithoutDefault>(some(2)), 2);
}

TEST(Forward, MayBeOneOfSeveralOrATemplate) {
  EXPECT_EQ(sum_of<Overloaded>(some(1)), 2);
  EXPECT_EQ(sum_of<Overloaded>(some(3)), 6);
  auto pair = std::make_shared<OfAnyType>();
  EXPECT_EQ(forward_of(pair)(some(1)).tensors()[1].sum().item<double>(), 4);
  EXPECT_THAT(output_names_of(pair), ElementsAre("output_0", "output_1"));
  EXPECT_EQ(taken<torch::nn::SequentialImpl>().most, 1u) << "it says that it takes any number";
  EXPECT_EQ(taken<torch::nn::LSTMImpl>().most, 1u) << "and a state, which is no tensor";
}

TEST(Forward, SaysHowManyTensorsItTakes) {
  EXPECT_THAT(message_of([] { sum_of<WithMask>(some(3)); }), HasSubstr("takes 1 to 2 tensors, but an example has 3"));
  EXPECT_THAT(message_of([] { sum_of<Overloaded>(some(2)); }), HasSubstr("an example has 2 inputs"));
  EXPECT_THAT(message_of([] { sum_of<WithSwitch>(some(2)); }), HasSubstr("takes 1 tensors, but an example has 2"));
  static_assert(forward_internal::inputs_taken<OfNumbers>().count == 0, "which compile() refuses");
}

TEST(Forward, TrainsWithAndWithoutATensorThatHasADefault) {
  const at::Tensor x = torch::randn({16, 2}), y = x.sum(1, true), mask = torch::zeros({16, 1});
  Model model = compile(std::make_shared<WithMask>(), {.loss = mean_squared_error});
  const Dataset masked = Dataset::tensors({x, mask, y}).named({"x", "mask", "y"}).batch(8);

  const at::Tensor before = model.variables().all()[0].value().clone();
  model.fit(masked, {.verbose = 0});
  EXPECT_TRUE(model.variables().all()[0].value().equal(before)) << "the mask left nothing to learn from";
  model.fit({x, y}, {.verbose = 0});
  EXPECT_FALSE(model.variables().all()[0].value().equal(before));

  EXPECT_TRUE(model.predict(masked).equal(mask));
  EXPECT_EQ(model.predict(x).sizes(), at::IntArrayRef({16, 1}));
}

TEST(Forward, DoesNotGuessWhetherAColumnToPredictIsAnInputOrATarget) {
  const at::Tensor x = torch::ones({4, 2}), y = torch::ones({4, 1});
  Model model = compile(std::make_shared<WithMask>(), {.loss = mean_squared_error});
  const Dataset columns = Dataset::tensors({x, y}).named({"x", "y"}).batch(4);

  EXPECT_THAT(message_of([&] { model.predict(columns); }), HasSubstr("the last one may be an input or the target"));

  EXPECT_TRUE(model.predict(columns.label("y")).equal(model.predict(x)));
  const at::Tensor mask = torch::zeros({4, 1});
  EXPECT_TRUE(model.predict(Features({"x", "mask"}, {x, mask})).equal(mask)) << "there is no target among inputs";
}

TEST(Forward, DoesNotGuessAmongSeveralTensorsWithDefaults) {
  const at::Tensor x = torch::ones({4, 2}), one = torch::ones({4, 1});
  Model model = compile(std::make_shared<WithMaskAndOffset>(), {.loss = mean_squared_error});
  const Dataset columns = Dataset::tensors({x, one, one}).named({"x", "mask", "y"}).batch(4);

  EXPECT_THAT(message_of([&] { model.predict(columns); }), HasSubstr("the last one may be an input or the target"));
  EXPECT_TRUE(model.predict(columns.label("y")).equal(model.predict(Features({"x", "mask"}, {x, one}))));
}

TEST(Forward, DoesNotGuessWhichTensorsWithoutNamesAreInputs) {
  const at::Tensor x = torch::ones({4, 2}), one = torch::ones({4, 1});
  Model model = compile(std::make_shared<WithMask>(), {.loss = mean_squared_error});

  EXPECT_THAT(message_of([&] { model.fit({x, one, one}, {.verbose = 0}); }),
              HasSubstr("has 3 tensors without names, and forward() takes 1 to 2"));
  EXPECT_THAT(message_of([&] { model.predict({x, one}); }), HasSubstr("nobody knows which of them are inputs"));
}

}  // namespace
}  // namespace muster::forward_test
