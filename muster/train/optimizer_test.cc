#include "muster/train/optimizers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/distribute/servers/parameter_server_strategy.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"
#include "muster/train/adaptive_optimizers.h"
#include "muster/train/embedding.h"

namespace muster {
namespace {

// Which a compiler may take for another rule.
TEST(Optimizer, TakesEmptyBracesForItsDefaults) {
  const auto rate_of = [](Optimizer&& rule) {
    EXPECT_FALSE(rule.bound());
    rule.bind({Variable(torch::zeros({2}))});
    return rule.learning_rate();
  };

  EXPECT_EQ(rate_of(Sgd({})), 0.01);
  EXPECT_EQ(rate_of(Adagrad({})), 0.01);
  EXPECT_EQ(rate_of(Adam({})), 0.001);
  EXPECT_EQ(rate_of(AdamW({})), 0.001);
  EXPECT_EQ(rate_of(RmsProp({})), 0.01);
  EXPECT_EQ(rate_of(Adadelta({})), 1.0);
  EXPECT_EQ(rate_of(Adamax({})), 0.002);
  EXPECT_EQ(rate_of(Nadam({})), 0.002);
  EXPECT_EQ(rate_of(Ftrl({})), 0.001);
  EXPECT_EQ(rate_of(Lamb({})), 0.001);
  EXPECT_EQ(rate_of(Lion({})), 0.0001);
  EXPECT_EQ(rate_of(Sgd({.learning_rate = 0.5})), 0.5);
}

TEST(Optimizer, IsNotMadeInsideOfAFunction) {
  Variable w(torch::zeros({2}), {.name = "made_outside"});
  auto step = function([&](at::Tensor x) {
    const Adam adam({w});
    adam.minimize((w * x).sum());
  });
  try {
    step(torch::ones({2}));
    FAIL() << "every trace would have slots of its own";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("the optimizer adam is made inside a traced function"));
  }
}

TEST(Optimizer, AdamByRowsMovesOnlyRowsWithAGradient) {
  Variable table(torch::zeros({3, 2}));
  Adam adam({table}, {.learning_rate = 0.1});
  auto step = function([&](const at::Tensor& ids) { adam.minimize(lookup(table, ids).sum()); });

  step(torch::tensor({1}, torch::kLong));

  // The first step of Adam is the learning rate, whatever the gradient.
  EXPECT_TRUE(torch::allclose(table.value(), torch::tensor({{0.0F, 0.0F}, {-0.1F, -0.1F}, {0.0F, 0.0F}})));
}

TEST(Optimizer, KeepsItsSlotsBesideTheVariableInTheSameParts) {
  InProcessCluster cluster({.workers = 1, .ps = 2});
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner{.num_shards = 2}});
  auto w = strategy.make<Variable>(torch::ones({3, 2}));
  Adagrad adagrad({w}, {.learning_rate = 0.5, .initial_accumulator = 1});
  auto step = function([&] { adagrad.minimize(w.value().sum()); });

  strategy.run(step);

  const Variable slot = adagrad.slots().at(0);
  ASSERT_EQ(slot.shards().size(), 2U);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(slot.shards()[i].device(), w.shards()[i].device());
  EXPECT_TRUE(torch::allclose(slot.value(), torch::full({3, 2}, 2.0F)));
  EXPECT_TRUE(torch::allclose(w.value(), torch::full({3, 2}, static_cast<float>(1 - 0.5 / std::sqrt(2.0)))));
}

// What a rule keeps is written in several instructions, some of which need no gradient: they may run in another part of
// the step than the rest.
TEST(Optimizer, TakesTheSameStepsOnAParameterServerAsHere) {
  InProcessCluster cluster({.workers = 1, .ps = 2});
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner{.num_shards = 2}});
  torch::manual_seed(4);
  const at::Tensor start = torch::randn({4, 3});
  auto compare = [&](const auto& make) {
    auto there = strategy.make<Variable>(start);
    Variable here(start);
    const std::shared_ptr<Optimizer> remote = make(there), local = make(here);
    auto step_of = [](const Variable& w, const Optimizer& rule) {
      return function([&w, &rule](const at::Tensor& x) { rule.minimize(torch::matmul(x, w).square().mean()); });
    };
    auto remote_step = step_of(there, *remote), local_step = step_of(here, *local);
    for (int i = 0; i < 3; ++i) {
      const at::Tensor x = torch::randn({8, 4});
      strategy.run(remote_step, x);
      local_step(x);
      EXPECT_TRUE(torch::allclose(there.value(), here.value(), 1e-5, 1e-6)) << "step " << i;
    }
  };

  compare([](const Variable& v) {
    return std::make_shared<Sgd>(std::vector{v}, SgdOptions{.momentum = 0.9, .nesterov = true, .weight_decay = 0.1});
  });
  compare([](const Variable& v) { return std::make_shared<Adagrad>(std::vector{v}); });
  compare([](const Variable& v) { return std::make_shared<Adam>(std::vector{v}, AdamOptions{.weight_decay = 0.1}); });
  compare([](const Variable& v) { return std::make_shared<AdamW>(std::vector{v}); });
}

TEST(Optimizer, TakesManyStepsInOneExecutionAsItTakesThemOneByOne) {
  InProcessCluster cluster({.workers = 1, .ps = 2});
  ParameterServerStrategy strategy(cluster.resolver());
  torch::manual_seed(5);
  const at::Tensor start = torch::randn({4, 3}), bias = torch::randn({3}), xs = torch::randn({6, 8, 4});
  auto w = strategy.make<Variable>(start), b = strategy.make<Variable>(bias);
  Variable here_w(start), here_b(bias);
  const Adagrad there({w, b}, {.learning_rate = 0.1}), here({here_w, here_b}, {.learning_rate = 0.1});
  auto six = function([&](const at::Tensor& batches) {
    repeat(6, [&](const at::Tensor& i) { there.minimize(torch::addmm(b, element(batches, i), w).square().mean()); });
  });
  auto one = function([&](const at::Tensor& x) { here.minimize(torch::addmm(here_b, x, here_w).square().mean()); });

  strategy.run(six, xs);
  for (int i = 0; i < 6; ++i) one(xs[i].contiguous());

  EXPECT_TRUE(torch::allclose(w.value(), here_w.value(), 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(b.value(), here_b.value(), 1e-5, 1e-6));
}

TEST(Optimizer, RefusesALossThatDependsOnNoneOfItsVariables) {
  Variable w(torch::ones({2}), {.name = "wanted"}), other(torch::ones({2}));
  const Sgd sgd({w});
  auto step = function([&] { sgd.minimize(other.value().sum()); });

  try {
    step();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("wanted"));
  }
}

TEST(Optimizer, BringsNoTableIntoAStepThatDoesNotUseIt) {
  Variable w(torch::ones({2})), table(torch::ones({100, 4}));
  const Adam adam({w, table});
  auto step = function([&] { adam.minimize(w.value().sum()); });

  const Program program = step.program();

  EXPECT_EQ(program.variables.size(), 6u) << "w, what Adam keeps for it, its rate and its count of steps";
}

TEST(Optimizer, TakesGradientsThatWereChanged) {
  Variable w(torch::ones({2})), table(torch::ones({3, 2}));
  const Sgd sgd({w, table}, {.learning_rate = 1});
  auto step = function([&](at::Tensor ids) {
    Gradients gradients = gradients_by_rows(w.value().sum() * 8 + lookup(table, ids).sum() * 4, sgd.variables());
    for (at::Tensor& gradient : gradients.dense) {
      if (gradient.defined()) gradient = gradient / 8;
    }
    for (RowGradient& gradient : gradients.rows) gradient.rows[0] = gradient.rows[0] / 8;
    sgd.apply(gradients);
  });

  step(torch::tensor({1}));

  EXPECT_TRUE(torch::equal(w.value(), torch::zeros({2})));
  EXPECT_TRUE(torch::equal(table.value(), torch::tensor({{1.0F, 1.0F}, {0.5F, 0.5F}, {1.0F, 1.0F}})));
  auto wrong = function([&] { sgd.apply({}); });
  EXPECT_THROW(wrong(), Error);
}

TEST(Optimizer, RefusesWhatCannotBeTrained) {
  EXPECT_THROW(Sgd(std::vector<Variable>{}), Error);
  Variable counter(torch::zeros({}, torch::kLong));
  EXPECT_THROW(Sgd({counter}), Error);
  Variable w(torch::zeros({2}));
  EXPECT_THROW(Sgd({w}, {.nesterov = true}), Error);
}

TEST(Optimizer, RefusesOptionsThatPyTorchRefuses) {
  Variable w(torch::zeros({2}));

  EXPECT_THROW(Sgd({w}, {.learning_rate = -0.1}), Error);
  EXPECT_THROW(Sgd({w}, {.momentum = -1}), Error);
  EXPECT_THROW(Sgd({w}, {.momentum = 0.9, .dampening = -0.1}), Error);
  EXPECT_THROW(Sgd({w}, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}), Error);
  EXPECT_THROW(Sgd({w}, {.weight_decay = -1}), Error);
  EXPECT_THROW(Adagrad({w}, {.initial_accumulator = -1}), Error);
  EXPECT_THROW(Adagrad({w}, {.learning_rate = std::nan("")}), Error);
  EXPECT_THROW(Adam({w}, {.beta1 = 1.5}), Error);
  EXPECT_THROW(Adam({w}, {.epsilon = -1}), Error);
  EXPECT_THROW(AdamW({w}, {.beta2 = -0.1}), Error);
  EXPECT_THROW(Sgd({w, w}), Error);
}

// ---- Several replicas
TEST(Optimizer, TakesOneStepDownTheGradientsOfAllReplicas) {
  InProcessCluster cluster({.workers = 1, .ps = 2, .devices_per_task = 2});
  ParameterServerStrategy strategy(cluster.resolver(), {.partitioner = FixedShardsPartitioner{2},
                                                        .replica_devices = {"/device:CPU:0", "/device:CPU:1"}});
  torch::manual_seed(5);
  const at::Tensor start = torch::randn({6, 3}), weights = torch::randn({3, 1});
  Variable table = strategy.make<Variable>(start), w = strategy.make<Variable>(weights);
  Variable whole_table(start), whole_w(weights);
  const Adam together({table, w}, {.learning_rate = 0.1}), alone({whole_table, whole_w}, {.learning_rate = 0.1});
  auto replica = function([&](at::Tensor ids) {
    at::Tensor loss = torch::matmul(lookup(table, ids), w.value()).square().mean();
    together.minimize(loss);
    return loss;
  });
  auto step = function([&](at::Tensor ids) {
    const PerReplica<at::Tensor> halves{{ids.narrow(0, 0, 3), ids.narrow(0, 3, 3)}};
    return strategy.reduce(ReduceOp::kMean, strategy.run(replica, halves));
  });
  auto step_alone = function([&](at::Tensor ids) {
    at::Tensor loss = torch::matmul(lookup(whole_table, ids), whole_w.value()).square().mean();
    alone.minimize(loss);
    return loss;
  });
  ClusterCoordinator coordinator(strategy);

  for (int i = 0; i < 3; ++i) {
    const at::Tensor ids = torch::tensor({0, 5, 2, 2, 4, 0});  // both have 0 and 2
    const at::Tensor loss = coordinator.schedule(step, ids).fetch();
    EXPECT_TRUE(torch::allclose(loss, step_alone(ids), 1e-4, 1e-4));
  }

  EXPECT_TRUE(torch::allclose(table.value(), whole_table.value(), 1e-4, 1e-4));
  EXPECT_TRUE(torch::allclose(w.value(), whole_w.value(), 1e-4, 1e-4));
}

TEST(Optimizer, AveragesTheGradientsOfReplicasThatDependOnDifferentVariables) {
  InProcessCluster cluster({.workers = 1, .ps = 1, .devices_per_task = 2});
  ParameterServerStrategy strategy(cluster.resolver(), {.replica_devices = {"/device:CPU:0", "/device:CPU:1"}});
  torch::manual_seed(6);
  const at::Tensor rows = torch::randn({4, 2}), first = torch::randn({2}), second = torch::randn({2});
  auto table = strategy.make<Variable>(rows), a = strategy.make<Variable>(first), b = strategy.make<Variable>(second);
  Variable here_table(rows), here_a(first), here_b(second);
  const AdamW there({table, a, b}, {.learning_rate = 0.1}), here({here_table, here_a, here_b}, {.learning_rate = 0.1});
  // The first one uses the table by rows and `a`, the second one the table as a whole; nobody uses `b`.
  auto loss_of = [](const Variable& t, const Variable& v, const at::Tensor& ids, int id) {
    return id == 0 ? (lookup(t, ids) * v.value()).sum() : t.value().square().sum();
  };
  auto replica = function([&](at::Tensor ids) { there.minimize(loss_of(table, a, ids, replica_id())); });
  auto step = function([&](at::Tensor ids) { strategy.run(replica, ids); });
  auto step_here = function([&](at::Tensor ids) {
    here.minimize((loss_of(here_table, here_a, ids, 0) + loss_of(here_table, here_a, ids, 1)) / 2);
  });
  ClusterCoordinator coordinator(strategy);

  for (int i = 0; i < 3; ++i) {
    const at::Tensor ids = torch::tensor({2, 0, 2});
    coordinator.schedule(step, ids);
    coordinator.join();
    step_here(ids);
  }

  EXPECT_TRUE(torch::allclose(table.value(), here_table.value(), 1e-4, 1e-5));
  EXPECT_TRUE(torch::allclose(a.value(), here_a.value(), 1e-4, 1e-5));
  EXPECT_TRUE(torch::equal(b.value(), second));
}

TEST(Optimizer, TrainsTheModuleThatAStrategyHasMade) {
  InProcessCluster cluster({.workers = 1, .ps = 1});
  ParameterServerStrategy strategy(cluster.resolver());
  auto net = strategy.make<torch::nn::Linear>(2, 1);
  const at::Tensor before = net->weight.detach().clone();
  const Sgd sgd(net, {.learning_rate = 0.5});
  auto step = function([&](at::Tensor x) { sgd.minimize(net->forward(x).sum()); });
  ClusterCoordinator coordinator(strategy);

  coordinator.schedule(step, torch::ones({1, 2}));
  coordinator.join();

  EXPECT_EQ(sgd.variables().size(), 2u);
  EXPECT_TRUE(torch::equal(net->weight.detach(), before)) << "the module's own tensors stand for the variables";
  adopted(net).write_back();
  EXPECT_TRUE(torch::allclose(net->weight.detach(), before - 0.5));
}

}  // namespace
}  // namespace muster
