#include "muster/trace/tracer/captured_tensor.h"

#include "muster/base/log.h"
#include "muster/trace/function.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/replay_test.h"

namespace muster {
namespace {

constexpr const char* kRule = "Everything that is captured and no Variable is frozen at the first call";

size_t warnings(const LogCapture& log, const std::string& words) {
  const auto lines = log.lines();
  return static_cast<size_t>(std::count_if(lines.begin(), lines.end(), [&](const LogLine& line) {
    return line.level == LogLevel::kWarning && line.text.find(words) != std::string::npos;
  }));
}

TEST(CapturedTensor, ThatIsWrittenToLaterIsToldOnce) {
  at::Tensor scale = torch::ones({2});
  auto scaled = function([&](at::Tensor x) { return x * scale; }, {.name = "scaled"});
  LogCapture log;

  scaled(torch::ones({2}));
  scaled(torch::ones({2}));
  EXPECT_EQ(log.lines().size(), 0);
  scale.slice(0, 0, 1).fill_(5);
  for (int i = 0; i < 3; ++i) scaled(torch::ones({2}));

  EXPECT_EQ(warnings(log, kRule), 1);
  EXPECT_TRUE(log.contains("function \"scaled\" (captured_tensor_test.cc:"));
  EXPECT_TRUE(log.contains("a tensor (float32[2]) that it captures was written to after the trace"));
}

TEST(CapturedTensor, ThatIsReplacedLaterIsToldOnce) {
  at::Tensor scale = torch::ones({2});
  auto scaled = function([&](at::Tensor x) { return x * scale; });
  LogCapture log;
  scaled(torch::ones({2}));

  scale = torch::full({2}, 5.0);
  for (int i = 0; i < 3; ++i) scaled(torch::ones({2}));

  EXPECT_EQ(warnings(log, kRule), 1);
  EXPECT_TRUE(log.contains("was replaced"));
}

TEST(CapturedTensor, ThatGetsOtherDataIsTold) {
  at::Tensor scale = torch::ones({2});
  auto scaled = function([=](at::Tensor x) { return x * scale; });
  LogCapture log;
  scaled(torch::ones({2}));

  scale.set_data(torch::zeros({2}));
  scaled(torch::ones({2}));

  EXPECT_EQ(warnings(log, kRule), 1);
}

TEST(CapturedTensor, ThatTheFunctionMadeOfAPointerIsNoneOfTheCallers) {
  float numbers[2] = {1, 2};
  auto add = function([&](at::Tensor x) { return x + torch::from_blob(numbers, {2}); });
  LogCapture log;

  add(torch::ones({2}));
  add(torch::ones({2}));

  EXPECT_EQ(log.lines().size(), 0);
}

TEST(CapturedTensor, ThatRequiresGradientsAndIsNoVariableIsTold) {
  torch::nn::Linear net(3, 2);
  auto infer = function([&](at::Tensor x) { return net(x); }, {.name = "infer"});
  LogCapture log;

  infer(torch::ones({1, 3}));
  infer(torch::ones({2, 3}));

  EXPECT_EQ(warnings(log, "captures 2 tensors that require gradients and are no variables, such as float32[2, 3]"), 1);
  EXPECT_EQ(warnings(log, "muster::adopt"), 1);
}

TEST(CapturedTensor, OfAnAdoptedModuleIsAVariable) {
  torch::nn::Linear net(3, 2);
  auto variables = adopt(net);
  auto infer = function([&](at::Tensor x) { return net(x); });
  LogCapture log;

  infer(torch::ones({1, 3}));
  variables.write_back();
  infer(torch::ones({1, 3}));

  EXPECT_EQ(log.lines().size(), 0);
}

TEST(TensorOfATrace, ThatSomebodyKeepsIsTold) {
  std::vector<at::Tensor> losses;
  auto step = function(
      [&](at::Tensor x) {
        losses.push_back(x.square().mean());
        return x * 2;
      },
      {.name = "step"});
  LogCapture log;

  for (int i = 0; i < 3; ++i) step(torch::ones({2}));

  EXPECT_EQ(losses.size(), 1);
  EXPECT_EQ(warnings(log, "function \"step\" (captured_tensor_test.cc:"), 1);
  EXPECT_EQ(warnings(log, "a tensor (float32[]) that it made is still held by somebody"), 1);
  EXPECT_EQ(warnings(log, "return the tensor"), 1);
}

TEST(TensorOfATrace, ThatAnOptimizerOfLibtorchKeepsAsItsStateIsToldWithItsName) {
  torch::nn::Linear net(3, 1);
  auto variables = adopt(net);
  torch::optim::Adam adam(net->parameters(), 0.01);
  auto step = function([&](at::Tensor x) {
    adam.zero_grad();
    net(x).sum().backward();
    adam.step();
  });
  LogCapture log;

  step(torch::ones({2, 3}));

  EXPECT_EQ(warnings(log, "the state of torch::optim::Adam::step"), 1);
  EXPECT_EQ(warnings(log, "use Muster's optimizers"), 1);
}

TEST(TensorOfATrace, ThatDependsOnNoDataMayBeKept) {
  at::Tensor table;  // as modules keep the encodings of positions
  auto add = function([&](at::Tensor x) {
    if (!table.defined()) table = torch::arange(2).to(torch::kFloat).exp();
    return x + table;
  });
  LogCapture log;

  add(torch::ones({2}));
  add(torch::ones({1, 2}));

  EXPECT_EQ(log.lines().size(), 0);
}

}  // namespace
}  // namespace muster
