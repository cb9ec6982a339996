// The learning rate and the count of steps, which are variables, and what else all rules have in common.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/log.h"
#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/distribute/local_strategies.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"
#include "muster/train/optimizers.h"

namespace muster::optimizer_rate_test {
namespace {

// A step whose gradient is 1: a variable goes down by the learning rate.
struct Falling {
  explicit Falling(Schedule rate, UpdateOptions all = {})
      : w(torch::zeros({2, 2})), sgd({w}, {.learning_rate = std::move(rate), .all = std::move(all)}) {}
  double fallen() const { return -w.value()[0][0].item<double>(); }

  Variable w;
  Sgd sgd;
  Function<std::function<void()>> step = function(std::function<void()>([this] { sgd.minimize(w.value().sum()); }));
};

TEST(LearningRate, ChangesWithoutANewTrace) {
  Falling falling(0.5);
  falling.step();
  EXPECT_EQ(falling.sgd.learning_rate(), 0.5);
  falling.sgd.set_learning_rate(0.25);
  falling.step();
  EXPECT_DOUBLE_EQ(falling.fallen(), 0.75);
  EXPECT_EQ(falling.sgd.learning_rate(), 0.25);
  EXPECT_EQ(falling.sgd.iterations(), 2);
  EXPECT_EQ(falling.step.stats().misses, 1);
}

TEST(LearningRate, FollowsItsScheduleStepByStep) {
  Falling falling(piecewise_constant({0, 1}, {1, 0.5, 0.25}));
  const std::vector<double> expected{1, 1.5, 1.75, 2};
  for (const double sum : expected) {
    falling.step();
    EXPECT_DOUBLE_EQ(falling.fallen(), sum);
  }
  EXPECT_EQ(falling.sgd.learning_rate(), 0.25);
  EXPECT_EQ(falling.step.stats().misses, 1);
}

TEST(LearningRate, FollowsItsScheduleInStepsThatAreOneProgram) {
  Falling falling(piecewise_constant({0, 1}, {1, 0.5, 0.25}));
  auto four = function([&] { repeat(4, [&](at::Tensor) { falling.sgd.minimize(falling.w.value().sum()); }); });
  four();
  EXPECT_DOUBLE_EQ(falling.fallen(), 2);
  EXPECT_EQ(falling.sgd.iterations(), 4);
}

TEST(LearningRate, MayBeSetUnderASchedule) {
  Falling falling(exponential_decay(1, 1, 0.5));
  falling.step();
  falling.sgd.set_learning_rate(0.5);  // begins with half of it
  EXPECT_DOUBLE_EQ(falling.sgd.learning_rate(), 0.25);
  falling.step();
  EXPECT_DOUBLE_EQ(falling.fallen(), 1.25);
}

TEST(LearningRate, IsNotSetToNonsense) {
  const Falling falling(1);
  EXPECT_THROW(falling.sgd.set_learning_rate(-1), Error);
  EXPECT_THROW(falling.sgd.set_learning_rate(std::nan("")), Error);
  EXPECT_THROW(Sgd({.learning_rate = 1}).set_learning_rate(1), Error) << "it has no variables";
  auto inside = function([&](at::Tensor x) {
    falling.sgd.set_learning_rate(0.5);
    return x;
  });
  EXPECT_THROW(inside(torch::zeros({1})), Error);
  EXPECT_EQ(falling.sgd.learning_rate(), 1);
}

TEST(Iterations, MayBeSetForASchedule) {
  Falling falling(piecewise_constant({0, 1}, {1, 0.5, 0.25}));
  falling.step();
  falling.sgd.set_iterations(100);
  EXPECT_EQ(falling.sgd.iterations(), 100);
  EXPECT_EQ(falling.sgd.learning_rate(), 0.25);
  falling.step();
  EXPECT_DOUBLE_EQ(falling.fallen(), 1.25);
  falling.sgd.set_iterations(0);
  falling.step();
  EXPECT_DOUBLE_EQ(falling.fallen(), 2.25);
  EXPECT_EQ(falling.step.stats().misses, 1);
}

TEST(Iterations, AreNotSetToNonsense) {
  const Falling falling(1);
  EXPECT_THROW(falling.sgd.set_iterations(-1), Error);
  EXPECT_THROW(Sgd({.learning_rate = 1}).set_iterations(1), Error) << "it has no variables";
  auto inside = function([&](at::Tensor x) {
    falling.sgd.set_iterations(2);
    return x;
  });
  EXPECT_THROW(inside(torch::zeros({1})), Error);
  EXPECT_EQ(falling.sgd.iterations(), 0);
}

TEST(LearningRate, IsTheSameOnAllDevicesOfAStrategy) {
  const MirroredStrategy mirrored({"/device:CPU:0", "/device:CPU:1"});
  auto w = mirrored.make<Variable>(torch::zeros({2}));
  const Sgd sgd({w}, {.learning_rate = exponential_decay(1, 1, 0.5)});
  auto step = function([&] { sgd.minimize(w.value().sum()); });
  mirrored.run(step);
  sgd.set_learning_rate(2);
  mirrored.run(step);
  for (const Variable& copy : w.copies()) EXPECT_TRUE(torch::equal(copy.value(), torch::full({2}, -2.0F)));
  EXPECT_EQ(sgd.iterations(), 2);
  sgd.set_iterations(0);
  mirrored.run(step);
  for (const Variable& copy : w.copies()) EXPECT_TRUE(torch::equal(copy.value(), torch::full({2}, -4.0F)));
}

TEST(LearningRate, IsThereAtEveryParameterServer) {
  const InProcessCluster cluster({.workers = 2, .ps = 2});
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner{2}});
  std::optional<Variable> table, alone;
  std::optional<Sgd> sgd;
  {
    const VariableScope scope = strategy.scope();
    table.emplace(torch::zeros({4, 2}));
    alone.emplace(torch::zeros({}));
    sgd.emplace(Trained{*table, *alone}, SgdOptions{.learning_rate = exponential_decay(1, 1, 0.5)});
  }
  ClusterCoordinator coordinator(strategy);
  auto step = function([&] { sgd->minimize(table->value().sum() + alone->value()); });
  coordinator.schedule(step);
  coordinator.join();
  sgd->set_learning_rate(2);
  coordinator.schedule(step);
  coordinator.join();
  EXPECT_TRUE(torch::equal(table->value(), torch::full({4, 2}, -2.0F))) << table->value();
  EXPECT_EQ(alone->value().item<float>(), -2);
  EXPECT_EQ(sgd->iterations(), 2);
  EXPECT_EQ(sgd->learning_rate(), 0.5);
  sgd->set_iterations(0);
  EXPECT_EQ(sgd->learning_rate(), 2);
  coordinator.schedule(step);
  coordinator.join();
  EXPECT_TRUE(torch::equal(table->value(), torch::full({4, 2}, -4.0F))) << table->value();
  EXPECT_EQ(alone->value().item<float>(), -4);
  EXPECT_EQ(step.stats().misses, 1);
}

TEST(ParameterGroups, HaveARateAndADecayOfTheirOwn) {
  Variable w(torch::ones({2, 2}), {.name = "layer.weight"}), b(torch::ones({2}), {.name = "layer.bias"}),
      frozen(torch::ones({2}), {.name = "old.weight"});
  const Sgd sgd({w, b, frozen}, {.learning_rate = 0.1,
                                 .weight_decay = 1,
                                 .all = {.groups = {{.names = "^old\\.", .rate_factor = 0},
                                                    {.names = "bias$", .rate_factor = 2, .weight_decay = 0}}}});
  auto step = function([&] { sgd.minimize(w.value().sum() + b.value().sum() + frozen.value().sum()); });
  step();
  EXPECT_TRUE(torch::allclose(w.value(), torch::full({2, 2}, 0.8F)));
  EXPECT_TRUE(torch::allclose(b.value(), torch::full({2}, 0.8F)));
  EXPECT_TRUE(torch::equal(frozen.value(), torch::ones({2})));
}

TEST(ParameterGroups, MayHaveAScheduleOfTheirOwn) {
  Variable body(torch::zeros({2}), {.name = "body"}), head(torch::zeros({2}), {.name = "head"}),
      tail(torch::zeros({2}), {.name = "tail"});
  const Sgd sgd(
      {body, head, tail},
      {.learning_rate = exponential_decay(0.5, 1, 0.5),
       .all = {.groups = {{.names = "head", .learning_rate = 2.0},
                          {.names = "tail", .rate_factor = 0.5, .learning_rate = inverse_time_decay(4, 1, 1)}}}});
  auto step = function([&] { sgd.minimize(body.value().sum() + head.value().sum() + tail.value().sum()); });
  step();
  step();
  EXPECT_EQ(body.value()[0].item<float>(), -(0.5F + 0.25F));
  EXPECT_EQ(head.value()[0].item<float>(), -(2.0F + 2.0F));
  EXPECT_EQ(tail.value()[0].item<float>(), -(2.0F + 1.0F));
  sgd.set_learning_rate(0.25);  // half of what it was, for all of them
  sgd.set_iterations(0);
  step();
  EXPECT_EQ(body.value()[0].item<float>(), -(0.75F + 0.25F));
  EXPECT_EQ(head.value()[0].item<float>(), -(4.0F + 1.0F));
  EXPECT_EQ(tail.value()[0].item<float>(), -(3.0F + 1.0F));
  EXPECT_EQ(step.stats().misses, 1);
}

TEST(ParameterGroups, RefuseWhatCannotBe) {
  EXPECT_THROW(Sgd({.all = {.groups = {{.names = "("}}}}), Error) << "no regular expression";
  EXPECT_THROW(Sgd({.all = {.groups = {{.names = "a", .rate_factor = -1}}}}), Error);
  EXPECT_THROW(Sgd({.all = {.groups = {{.names = "a", .learning_rate = -0.1}}}}), Error);
  EXPECT_THROW(Sgd({.learning_rate = 0.0, .all = {.groups = {{.names = "a", .learning_rate = 0.1}}}}), Error)
      << "there is nothing to multiply";
}

TEST(ParameterGroups, AreToldIfTheyAreOfNoVariable) {
  const Variable w(torch::ones({2, 2}), {.name = "layer.weight"}), b(torch::ones({2}), {.name = "layer.bias"});
  const LogCapture log;
  const Sgd sgd({w, b}, {.all = {.groups = {{.names = "^layer", .rate_factor = 0.5}, {.names = "^lyer"}}}});
  EXPECT_TRUE(log.contains("sgd: group \"^lyer\" is of none of its variables, which are layer.weight, layer.bias"));
  EXPECT_FALSE(log.contains("\"^layer\""));
}

TEST(WeightDecay, SkipsVectorsIfWanted) {
  Variable w(torch::ones({2, 2})), b(torch::ones({2}));
  const AdamW adam({w, b}, {.learning_rate = 0.1, .weight_decay = 0.5, .all = {.decay_vectors = false}});
  auto step = function([&] { adam.minimize((w.value().sum() + b.value().sum()) * 0); });
  step();
  EXPECT_TRUE(torch::allclose(w.value(), torch::full({2, 2}, 0.95F)));
  EXPECT_TRUE(torch::equal(b.value(), torch::ones({2})));
}

TEST(MinimizeMean, TakesOneStepForABatchInParts) {
  torch::manual_seed(2);
  const at::Tensor x = torch::randn({12, 4}), ids = torch::randint(6, {12}), start = torch::randn({4, 1});
  Variable whole(start), parts(start), table_whole(torch::zeros({6, 1})), table_parts(torch::zeros({6, 1}));
  const Adam of_whole({whole, table_whole}, {.learning_rate = 0.1}),
      of_parts({parts, table_parts}, {.learning_rate = 0.1});
  auto loss_of = [](const Variable& w, const Variable& table, const at::Tensor& some, const at::Tensor& rows) {
    return (torch::matmul(some, w.value()) + lookup(table, rows) - 1).square().mean();
  };
  auto one =
      function([&](at::Tensor some, at::Tensor rows) { of_whole.minimize(loss_of(whole, table_whole, some, rows)); });
  auto three = function([&](at::Tensor some, at::Tensor rows) {
    of_parts.minimize_mean(
        3, [&](int64_t i) { return loss_of(parts, table_parts, some.narrow(0, 4 * i, 4), rows.narrow(0, 4 * i, 4)); });
  });
  for (int i = 0; i < 3; ++i) {
    one(x, ids);
    three(x, ids);
  }
  EXPECT_TRUE(torch::allclose(whole.value(), parts.value(), 1e-4, 1e-5));
  EXPECT_TRUE(torch::allclose(table_whole.value(), table_parts.value(), 1e-4, 1e-5));
  EXPECT_EQ(of_parts.iterations(), 3);
}

}  // namespace
}  // namespace muster::optimizer_rate_test
