#include "muster/trace/signature.h"

#include <ATen/autocast_mode.h>

#include "muster/base/log.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/function.h"
#include "muster/trace/iterator.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/replay_test.h"
#include "muster/trace/variable.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Signature, HasTheDeviceScopeAroundTheCall) {
  auto twice = function([](at::Tensor x) { return x * 2; });
  auto devices_in = [&](const std::string& device) {
    DeviceScope on(device);
    const Program program = twice.program(torch::ones({2}));
    return program.devices[program.instructions[0].device];
  };

  EXPECT_EQ(devices_in("/device:CPU:0"), "/device:CPU:0");
  EXPECT_EQ(devices_in("/device:CPU:1"), "/device:CPU:1");
  EXPECT_EQ(devices_in("/device:CPU:0"), "/device:CPU:0");
  EXPECT_EQ(twice.stats().misses, 2);
}

TEST(Signature, HasAutocast) {
  auto product = function([](at::Tensor a, at::Tensor b) { return torch::matmul(a, b); });
  const at::Tensor a = torch::ones({2, 2});
  auto with = [&](bool enabled, at::ScalarType type) {
    at::autocast::set_autocast_dtype(at::kCPU, type);
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    const at::Tensor result = product(a, a);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    return result.scalar_type();
  };

  EXPECT_EQ(with(false, at::kBFloat16), at::kFloat);
  EXPECT_EQ(with(true, at::kBFloat16), at::kBFloat16);
  EXPECT_EQ(with(true, at::kHalf), at::kHalf);
  EXPECT_EQ(with(false, at::kBFloat16), at::kFloat);
  EXPECT_EQ(product.stats().misses, 3);
}

TEST(Signature, HasTheDefaultTypeOfNewTensors) {
  auto make = function([] { return torch::zeros({2}); });

  EXPECT_EQ(make().scalar_type(), at::kFloat);
  torch::set_default_dtype(caffe2::TypeMeta::Make<double>());
  const at::ScalarType type = make().scalar_type();
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());

  EXPECT_EQ(type, at::kDouble);
  EXPECT_EQ(make().scalar_type(), at::kFloat);
}

TEST(Signature, DoesNotHaveGradModeAndInferenceModeSinceTracesIgnoreThem) {
  Variable w(torch::full({2}, 3.0));
  auto slope = function([&](at::Tensor x) { return gradient((x * w * w).sum(), w); });
  const at::Tensor x = torch::ones({2});
  at::Tensor inside, without;
  {
    c10::InferenceMode inference;
    inside = slope(x);
  }
  {
    torch::NoGradGuard no_gradients;
    without = slope(x);
  }

  EXPECT_TRUE(same_bits(torch::full({2}, 6.0f), inside));
  EXPECT_TRUE(same_bits(inside, without));
  EXPECT_TRUE(same_bits(inside, slope(x)));
  EXPECT_EQ(slope.stats().misses, 1);
}

TEST(Signature, HasTheModesOfTheModulesThatWereUsed) {
  struct Net : torch::nn::Module {
    Net()
        : linear(register_module("linear", torch::nn::Linear(3, 3))),
          dropout(register_module("dropout", torch::nn::Dropout(0.5))) {}
    at::Tensor forward(at::Tensor x) { return dropout(linear(x)); }
    torch::nn::Linear linear;
    torch::nn::Dropout dropout;
  };
  auto net = std::make_shared<Net>();
  auto variables = adopt(*net);
  auto infer = function([&](at::Tensor x) { return net->forward(x); });
  auto other = function([](at::Tensor x) { return x * 2; });
  const at::Tensor x = torch::ones({64, 3});

  const at::Tensor trained = infer(x);
  other(x);
  net->eval();
  const at::Tensor evaluated = infer(x);
  other(x);
  torch::NoGradGuard no_gradients;
  const at::Tensor expected = net->forward(x);
  net->train();
  infer(x);

  EXPECT_TRUE((trained == 0).any().item<bool>());
  EXPECT_TRUE(same_bits(expected, evaluated));
  EXPECT_EQ(infer.stats().misses, 2);
  EXPECT_EQ(other.stats().misses, 1);
}

TEST(Signature, HasTheModesThatTheCallerHasSetNotThoseThatTheFunctionSets) {
  torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::Dropout(0.5));
  auto variables = adopt(net);
  auto in_mode = [&](bool training) {
    return function([&, training](at::Tensor x) {
      net->train(training);
      return net->forward(x);
    });
  };
  auto train = in_mode(true), evaluate = in_mode(false);
  const at::Tensor x = torch::ones({64, 3});
  torch::NoGradGuard no_gradients;

  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE((train(x) == 0).any().item<bool>());
    EXPECT_FALSE((evaluate(x) == 0).any().item<bool>());
  }

  EXPECT_LE(train.stats().misses, 2) << "one for each mode";
  EXPECT_LE(evaluate.stats().misses, 2);
}

TEST(Signature, EndsForAFunctionThatChangesTheModeWhenItIsTraced) {
  torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::Dropout(0.5));
  auto variables = adopt(net);
  auto change = function([&](at::Tensor x) {
    at::Tensor y = net->forward(x);
    net->train(!net->is_training());
    return y;
  });

  change(torch::ones({2, 3}));

  EXPECT_EQ(change.stats().misses, 1);
}

TEST(Signature, OfAModuleOnTheStackIsThatOfItsPartsWhereverItIsMoved) {
  struct Net : torch::nn::Module {
    Net()
        : dropout(register_module("dropout", torch::nn::Dropout(0.5))), w(register_parameter("w", torch::ones({3}))) {}
    at::Tensor forward(at::Tensor x) { return dropout(x * w); }
    torch::nn::Dropout dropout;
    at::Tensor w;
  };
  auto first = std::make_unique<Net>();
  auto variables = adopt(*first);
  Net net = std::move(*first);
  first.reset();
  auto infer = function([&](at::Tensor x) { return net.forward(x); });
  const at::Tensor x = torch::ones({64, 3});

  const at::Tensor trained = infer(x);
  net.eval();

  EXPECT_TRUE((trained == 0).any().item<bool>());
  EXPECT_TRUE(same_bits(x, infer(x)));
}

TEST(Signature, KeepsNothingOfAModuleAlive) {
  torch::nn::Sequential net(torch::nn::Linear(3, 3));
  auto variables = adopt(net);

  net = nullptr;

  EXPECT_TRUE(variables.module_is_gone());
}

TEST(Signature, OfAModuleThatIsGoneIsWhatItWasLast) {
  auto net = std::make_shared<torch::nn::SequentialImpl>(torch::nn::Linear(2, 2));
  auto forward = [weak = net.get()](at::Tensor x) { return weak->forward(x); };
  auto variables = adopt(*net);
  auto infer = function(forward);
  const at::Tensor x = torch::ones({1, 2});

  const at::Tensor before = infer(x);
  net.reset();

  EXPECT_TRUE(same_bits(before, infer(x)));
}

TEST(Signature, IsToldWhenItIsWhatAFunctionIsTracedAgainFor) {
  auto twice = function([](at::Tensor x) { return x * 2; }, {.name = "twice"});
  const at::Tensor x = torch::ones({1});
  LogCapture log;

  for (int i = 0; i < 7; ++i) {
    DeviceScope on("/device:CPU:" + std::to_string(i));
    twice.program(x);
  }

  EXPECT_TRUE(log.contains("device scope \"/device:CPU:5\" was device scope \"/device:CPU:4\" before"));
}

TEST(DescribeParts, NamesThePartsOfAnArgumentAsTheyAreWritten) {
  struct Point {
    at::Tensor x;
    int rank;
  };
  std::vector<std::string> descriptions;

  describe_parts("argument 0", std::vector{torch::ones({1}), torch::ones({2, 3})}, descriptions);
  describe_parts("argument 1", std::map<std::string, at::Tensor>{{"w", torch::ones({3})}}, descriptions);
  describe_parts("argument 2", std::pair(7, Point{torch::ones({4}), 3}), descriptions);
  describe_parts("argument 3", std::vector<bool>{true}, descriptions);

  EXPECT_THAT(descriptions,
              testing::ElementsAre("argument 0[0]: float32[1]", "argument 0[1]: float32[2, 3]",
                                   "argument 1[\"w\"]: float32[3]", "argument 2[0]: 7", "argument 2[1][0]: float32[4]",
                                   "argument 2[1][1]: 3", "argument 3[0]: 1"));
}

TEST(DescribeParts, OfASequenceOfExamplesAreItsElementsAndNotWhatItIsMadeOf) {
  Iterator iterator{.number = torch::zeros({}, torch::kLong),
                    .specs = numbers_of({{DType::kFloat, {5, 4}}, {DType::kLong, {5}}}),
                    .names = {"x", "y"}};
  std::vector<std::string> descriptions;

  describe_parts("argument 0", iterator, descriptions);

  EXPECT_THAT(descriptions, testing::ElementsAre("argument 0: a sequence of (\"x\" float32[5, 4], \"y\" int64[5])"));
}

}  // namespace
}  // namespace muster
