#include "muster/trace/module_variables.h"

#include "muster/base/log.h"
#include "muster/trace/function.h"
#include "muster/trace/replay_test.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace nn = torch::nn;

TEST(ModuleVariables, AreTheParametersAndBuffersOfTheModule) {
  nn::Sequential net(nn::Linear(2, 3), nn::BatchNorm1d(3));
  net->parameters()[1].requires_grad_(false);

  const ModuleVariables variables = adopt(net, {.prefix = "net"});

  std::vector<std::string> names;
  for (const Variable& variable : variables.all()) names.push_back(variable.name());
  EXPECT_THAT(names, ::testing::ElementsAre("net.0.weight", "net.0.bias", "net.1.weight", "net.1.bias",
                                            "net.1.running_mean", "net.1.running_var", "net.1.num_batches_tracked"));
  EXPECT_EQ(variables.trainable().size(), 3);
  EXPECT_TRUE(same_bits(net->parameters()[0].detach(), variables.at("0.weight").value()));
}

TEST(ModuleVariables, SayWhichNamesThereAre) {
  nn::Linear linear(2, 3);
  const ModuleVariables variables = adopt(linear);

  EXPECT_THAT(error_of(StatusCode::kNotFound, [&] { variables.at("wait"); }),
              AllOf(HasSubstr("\"wait\""), HasSubstr("weight, bias")));
}

TEST(ModuleVariables, AreWhatATracedFunctionUsesInsteadOfTheModulesTensors) {
  nn::Linear linear(2, 1);
  const ModuleVariables variables = adopt(linear);
  auto forward = function([&](at::Tensor x) { return linear->forward(x); });
  const at::Tensor x = torch::randn({4, 2});

  const at::Tensor before = forward(x);
  for (Variable variable : variables.all()) variable.assign(torch::zeros(variable.sizes()));
  const at::Tensor after = forward(x);

  EXPECT_TRUE(same_bits(linear->forward(x).detach(), before));  // the module itself did not change
  EXPECT_TRUE(same_bits(torch::zeros({4, 1}), after));
}

TEST(ModuleVariables, SayThatATensorOfTheModuleWasReplaced) {
  nn::Linear linear(2, 1);
  const ModuleVariables variables = adopt(linear);
  auto forward = function([&](at::Tensor x) { return linear->forward(x); });
  forward(torch::ones({4, 2}));

  linear->to(torch::kDouble);

  for (int i = 0; i < 3; ++i) {
    nn::Linear other(2, 1);  // whose memory may be where the first one's was
    const ModuleVariables others = adopt(other);
    EXPECT_THAT(error_of(StatusCode::kFailedPrecondition, [&] { forward(torch::ones({4, 2}, torch::kDouble)); }),
                AllOf(HasSubstr("float32[1, 2]"), HasSubstr("float64[1, 2]"), HasSubstr("before it is adopted")));
    EXPECT_THAT(error_of(StatusCode::kFailedPrecondition, [&] { adopted(linear); }), HasSubstr("has been replaced"));
  }
}

TEST(ModuleVariables, CanBeAskedForInALoop) {
  nn::Linear linear(2, 1);
  const ModuleVariables variables = adopt(linear);

  std::vector<std::string> names;
  for (const Variable& variable : adopted(linear).all()) names.push_back(variable.name());

  EXPECT_EQ(names.size(), 2u);
  EXPECT_EQ(adopted(linear).at("bias").sizes(), at::IntArrayRef({1}));
}

TEST(ModuleVariables, AreReadFromTheModuleOnRequest) {
  nn::Sequential net(nn::Linear(2, 3), nn::BatchNorm1d(3));
  const ModuleVariables variables = adopt(net);
  auto forward = function([&](at::Tensor x) { return net->forward(x); });
  const at::Tensor x = torch::ones({4, 2}), before = forward(x);
  {
    torch::NoGradGuard no_gradients;
    net->parameters()[3].fill_(7);
    net->buffers()[0].fill_(5);
  }
  EXPECT_TRUE(same_bits(forward(x), before));

  variables.read_module();

  EXPECT_TRUE(torch::allclose(forward(x), before + 7));
  EXPECT_EQ(variables.at("1.running_mean").value()[0].item<float>() > 4, true);
  net->parameters()[3].data().fill_(1);
  EXPECT_TRUE(torch::allclose(forward(x), before + 7));
  EXPECT_TRUE(same_bits(variables.at("1.bias").value(), torch::full({3}, 7.0F)));
}

TEST(ModuleVariables, AreReadFromAModuleThatWasLoaded) {
  nn::Linear saved(2, 3), net(2, 3);
  std::stringstream file;
  torch::save(saved, file);
  const ModuleVariables variables = adopt(net);
  auto forward = function([&](at::Tensor x) { return net->forward(x); });

  torch::load(net, file);
  variables.read_module();

  EXPECT_TRUE(same_bits(variables.at("weight").value(), saved->weight.detach()));
  EXPECT_TRUE(same_bits(net->weight.detach(), saved->weight.detach()));
  EXPECT_TRUE(torch::allclose(forward(torch::ones({1, 2})), saved->forward(torch::ones({1, 2}))));
}

TEST(ModuleVariables, AreWrittenBackOnRequest) {
  nn::Sequential net(nn::Linear(2, 3), nn::BatchNorm1d(3));
  const ModuleVariables variables = adopt(net);
  const at::Tensor weight = net->parameters()[0].detach().clone();
  auto step = function([&](at::Tensor x) {
    at::Tensor loss = net->forward(x).pow(2).sum() + net->parameters()[0].sum();
    auto gradients = gradient(loss, variables.trainable());
    for (size_t i = 0; i < gradients.size(); ++i) {
      Variable variable = variables.trainable()[i];
      variable.assign_sub(gradients[i] * 0.1);
    }
    return loss;
  });

  for (int i = 0; i < 3; ++i) step(torch::randn({4, 2}));
  EXPECT_TRUE(same_bits(weight, net->parameters()[0].detach()));
  EXPECT_EQ(net->buffers()[2].item<int64_t>(), 0);
  variables.write_back();

  EXPECT_TRUE(same_bits(variables.at("0.weight").value(), net->parameters()[0].detach()));
  EXPECT_FALSE(torch::equal(weight, net->parameters()[0].detach()));
  EXPECT_EQ(net->buffers()[2].item<int64_t>(), 3);
}

TEST(ModuleVariables, SayThatTheModuleWasChangedInsteadOfThem) {
  torch::nn::Linear net(2, 1);
  torch::nn::BatchNorm1d norm(2);
  ModuleVariables variables = adopt(net), of_norm = adopt(norm);
  auto step = function(
      [&](at::Tensor x) {
        at::Tensor y = net(norm(x));
        variables.at("weight").assign_sub(torch::ones({1, 2}));
        return y;
      },
      {.name = "step"});
  LogCapture log;
  step(torch::ones({4, 2}));
  variables.write_back();
  of_norm.write_back();
  step(torch::ones({4, 2}));
  EXPECT_FALSE(log.contains("written to"));

  {
    torch::NoGradGuard no_gradients;
    net->weight.fill_(1);
  }
  step(torch::ones({4, 2}));

  EXPECT_TRUE(log.contains("that stands for variable \"weight\" was written to")) << "once is enough";
}

TEST(ModuleVariables, AreFoundByTheParameters) {
  torch::nn::Linear net(2, 1);
  ModuleVariables variables = adopt(net);

  const std::vector<Variable> found = variables_of(net->parameters());

  ASSERT_EQ(found.size(), 2);
  EXPECT_EQ(found[0].name(), variables.at("weight").name());
  EXPECT_EQ(found[1].name(), variables.at("bias").name());
  EXPECT_THAT(error_of(StatusCode::kFailedPrecondition, [&] { (void)variables_of({net->weight, torch::ones({3})}); }),
              HasSubstr("tensor 1 (float32[3]) stands for no variable"));
}

TEST(ModuleVariables, OfOneModuleExistOnce) {
  nn::Linear linear(2, 1);
  {
    const ModuleVariables variables = adopt(linear, {.prefix = "first"});

    EXPECT_THAT(error_of(StatusCode::kAlreadyExists, [&] { static_cast<void>(adopt(linear, {.prefix = "second"})); }),
                AllOf(HasSubstr("variable \"second.weight\": its tensor already stands for variable \"first.weight\""),
                      HasSubstr("a module can be adopted once")));
    auto forward = function([&](at::Tensor x) { return linear->forward(x); });
    EXPECT_EQ(forward.program(torch::ones({1, 2})).variables.size(), 2);  // the first ones still work
  }
  EXPECT_EQ(adopt(linear, {.prefix = "third"}).all()[0].name(), "third.weight");  // and may come again
}

TEST(ModuleVariables, OfATensorThatTheModuleHasTwiceAreOneVariable) {
  Holder tied;
  const at::Tensor weight = tied.parameter("encoder", torch::randn({3, 3}));
  tied.parameter("decoder", weight);

  const ModuleVariables variables = adopt(tied);
  auto update = function([&](at::Tensor x) {
    Variable variable = variables.all()[0];
    variable.assign_add(x);
    return weight.sum();
  });

  EXPECT_EQ(variables.all().size(), 1);
  EXPECT_TRUE(same_bits(variables.at("decoder").value(), variables.at("encoder").value()));
  EXPECT_TRUE(same_bits((weight.detach() + 1).sum(), update(torch::ones({3, 3}))));
}

TEST(ModuleVariables, LeaveTheGradientsOfTheModuleAsTheyWere) {
  nn::Linear linear(2, 1);
  linear->forward(torch::ones({1, 2})).sum().backward();
  const at::Tensor gradient = linear->weight.grad();
  linear->bias.mutable_grad().reset();
  const ModuleVariables variables = adopt(linear);
  auto step = function([&](at::Tensor x) {
    linear->forward(x).sum().backward();
    return linear->weight.grad() * 1;
  });

  const at::Tensor traced = step(torch::full({1, 2}, 5.0));

  EXPECT_TRUE(same_bits(torch::full({1, 2}, 5.0f), traced));  // without what was there before
  EXPECT_TRUE(linear->weight.grad().is_same(gradient));
  EXPECT_TRUE(same_bits(torch::ones({1, 2}), gradient));
  EXPECT_FALSE(linear->bias.grad().defined());
}

TEST(ModuleVariables, LeaveTheModuleAsItWasWhenTracingFails) {
  nn::BatchNorm1d norm(2);
  const ModuleVariables variables = adopt(norm);
  auto fails = function([&](at::Tensor x) -> at::Tensor {
    at::Tensor out = norm->forward(x);
    out.sum().backward();
    throw std::runtime_error("no");
  });

  EXPECT_THROW(fails(torch::randn({4, 2})), std::runtime_error);

  EXPECT_TRUE(same_bits(torch::zeros({2}), norm->running_mean));
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
  EXPECT_FALSE(norm->weight.grad().defined());
}

}  // namespace
}  // namespace muster
