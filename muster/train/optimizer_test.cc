#include "muster/train/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/cluster/in_process_cluster.h"
#include "muster/distribute/cluster_coordinator.h"
#include "muster/distribute/parameter_server_strategy.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"
#include "muster/train/embedding.h"

namespace muster {
namespace {

// Five steps on the same losses with ours and with libtorch's own; the values agree after each.
template <class Ours, class Theirs>
void expect_same_steps(const Ours& make_ours, const Theirs& make_theirs) {
  torch::manual_seed(1);
  const at::Tensor start = torch::randn({4, 3});
  Variable w(start);
  auto ours = make_ours(std::vector<Variable>{w});
  at::Tensor parameter = start.clone().requires_grad_();
  auto theirs = make_theirs(std::vector<at::Tensor>{parameter});
  auto step = function([&](const at::Tensor& x) {
    at::Tensor loss = torch::matmul(x, w).square().mean();
    ours.minimize(loss);
    return loss;
  });

  for (int i = 0; i < 5; ++i) {
    const at::Tensor x = torch::randn({8, 4});
    step(x);
    theirs.zero_grad();
    torch::matmul(x, parameter).square().mean().backward();
    theirs.step();
    ASSERT_TRUE(torch::allclose(w.value(), parameter.detach(), 1e-5, 1e-6)) << "after step " << i;
  }
}

TEST(Optimizer, SgdTakesTheStepsOfPyTorch) {
  expect_same_steps([](auto v) { return Sgd(v, {.learning_rate = 0.1}); },
                    [](auto p) { return torch::optim::SGD(p, 0.1); });
  expect_same_steps(
      [](auto v) { return Sgd(v, {.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01}); },
      [](auto p) { return torch::optim::SGD(p, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01)); });
  expect_same_steps(
      [](auto v) { return Sgd(v, {.learning_rate = 0.1, .momentum = 0.9, .nesterov = true}); },
      [](auto p) { return torch::optim::SGD(p, torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true)); });
}

TEST(Optimizer, AdagradTakesTheStepsOfPyTorch) {
  expect_same_steps([](auto v) { return Adagrad(v, {.learning_rate = 0.1}); },
                    [](auto p) { return torch::optim::Adagrad(p, 0.1); });
}

TEST(Optimizer, AdamAndAdamWTakeTheStepsOfPyTorch) {
  expect_same_steps([](auto v) { return Adam(v, {.learning_rate = 0.01}); },
                    [](auto p) { return torch::optim::Adam(p, 0.01); });
  expect_same_steps([](auto v) { return AdamW(v, {.learning_rate = 0.01, .weight_decay = 0.1}); },
                    [](auto p) { return torch::optim::AdamW(p, torch::optim::AdamWOptions(0.01).weight_decay(0.1)); });
}

TEST(Optimizer, ByRowsChangesTheRowsThatWereLookedUpAsTheDenseRuleWould) {
  torch::manual_seed(2);
  const at::Tensor start = torch::randn({6, 2});
  for (bool adagrad : {false, true}) {
    Variable table(start);
    const auto rule = adagrad ? std::shared_ptr<Optimizer>(new Adagrad({table}, {.learning_rate = 0.1}))
                              : std::shared_ptr<Optimizer>(new Sgd({table}, {.learning_rate = 0.1}));
    at::Tensor parameter = start.clone().requires_grad_();
    std::shared_ptr<torch::optim::Optimizer> theirs;
    if (adagrad) {
      theirs = std::make_shared<torch::optim::Adagrad>(std::vector<at::Tensor>{parameter}, 0.1);
    } else {
      theirs = std::make_shared<torch::optim::SGD>(std::vector<at::Tensor>{parameter}, 0.1);
    }
    auto step = function([&](const at::Tensor& ids, const at::Tensor& target) {
      rule->minimize((lookup(table, ids) - target).square().sum());
    });

    for (int i = 0; i < 4; ++i) {
      const at::Tensor ids = torch::tensor({1, 4, 1, 5}, torch::kLong), target = torch::randn({4, 2});
      step(ids, target);
      theirs->zero_grad();
      (parameter.index_select(0, ids) - target).square().sum().backward();
      theirs->step();
      ASSERT_TRUE(torch::allclose(table.value(), parameter.detach(), 1e-5, 1e-6));
    }
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

TEST(Optimizer, RefusesWhatCannotBeTrained) {
  EXPECT_THROW(Sgd({}), Error);
  Variable counter(torch::zeros({}, torch::kLong));
  EXPECT_THROW(Sgd({counter}), Error);
  Variable w(torch::zeros({2}));
  EXPECT_THROW(Sgd({w}, {.nesterov = true}), Error);
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
    at::Tensor loss = torch::matmul(lookup(table, ids), w.value()).square().sum();
    together.minimize(loss);
    return loss;
  });
  auto step = function([&](at::Tensor ids) {
    const PerReplica<at::Tensor> halves{{ids.narrow(0, 0, 3), ids.narrow(0, 3, 3)}};
    return strategy.reduce(ReduceOp::kSum, strategy.run(replica, halves));
  });
  auto step_alone = function([&](at::Tensor ids) {
    at::Tensor loss = torch::matmul(lookup(whole_table, ids), whole_w.value()).square().sum();
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

}  // namespace
}  // namespace muster
