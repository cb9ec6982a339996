// Steps that read each other's variables never wait for each other in a circle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "muster/cluster/test_environment.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/trace/device_scope.h"

namespace muster {
namespace {

using testing_support::strategy_of;

class VariableLocks : public ::testing::TestWithParam<Transport> {
 protected:
  InProcessCluster cluster_{{.workers = 2, .ps = 3, .transport = GetParam()}};
};

INSTANTIATE_TEST_SUITE_P(Transports, VariableLocks, ::testing::Values(Transport::kGrpc, Transport::kLocal),
                         [](const auto& info) { return info.param == Transport::kGrpc ? "Grpc" : "Local"; });

Variable number(const std::string& name, const std::string& device = "") {
  return Variable(torch::zeros({}, torch::kLong), {.name = name, .device = device});
}

// Adds one to `to`, at its task, by something that has to be fetched from the task of `from` first.
void add_one(const Variable& to, const Variable& from) {
  DeviceScope there(to.state()->options.device);
  Variable(to).assign_add(from.value().clamp(1, 1));
}

TEST_P(VariableLocks, LetClosuresAddTwoVariablesToEachOther) {
  ParameterServerStrategy strategy = strategy_of(cluster_, GetParam());
  auto scope = strategy.scope();
  Variable a = number("a"), b = number("b");
  auto forth = function([&] { add_one(a, b); });
  auto back = function([&] { add_one(b, a); });
  ClusterCoordinator coordinator(strategy);

  for (int i = 0; i < 500; ++i) {
    coordinator.schedule(forth);
    coordinator.schedule(back);
  }
  coordinator.join();

  EXPECT_EQ(a.value().item<int64_t>(), 500);
  EXPECT_EQ(b.value().item<int64_t>(), 500);
}

TEST_P(VariableLocks, LetClosuresGoRoundARingOfThree) {
  ParameterServerStrategy strategy = strategy_of(cluster_, GetParam());
  auto scope = strategy.scope();
  const std::vector<Variable> ring{number("a"), number("b"), number("c")};
  std::vector<std::function<void()>> schedule;
  ClusterCoordinator coordinator(strategy);
  for (size_t i = 0; i < ring.size(); ++i) {
    auto step = function([&, i] { add_one(ring[i], ring[(i + 1) % ring.size()]); });
    schedule.push_back([&, step] { coordinator.schedule(step); });
  }

  for (int i = 0; i < 100; ++i) {
    for (const auto& each : schedule) each();
  }
  coordinator.join();

  for (const Variable& each : ring) EXPECT_EQ(each.value().item<int64_t>(), 100);
}

TEST_P(VariableLocks, LetMastersAddTheirOwnVariablesToEachOther) {
  Variable a = number("a", "/job:ps/task:0"), b = number("b", "/job:ps/task:1");
  auto forth = function([&] { add_one(a, b); });
  auto back = function([&] { add_one(b, a); });
  auto first = cluster_.session({"ps", 0}), second = cluster_.session({"ps", 1});
  first->run(initializer(a, b));

  std::thread other([&] {
    for (int i = 0; i < 200; ++i) second->run(back);
  });
  for (int i = 0; i < 200; ++i) first->run(forth);
  other.join();

  EXPECT_EQ(first->value(a).item<int64_t>(), 200);
  EXPECT_EQ(first->value(b).item<int64_t>(), 200);
}

TEST_P(VariableLocks, LetLoopsOverSeveralTasksAddVariablesToEachOther) {
  Variable a = number("a", "/job:ps/task:0"), b = number("b", "/job:ps/task:1");
  auto forth = function([&] { repeat(20, [&](at::Tensor) { add_one(a, b); }); });
  auto back = function([&] { repeat(20, [&](at::Tensor) { add_one(b, a); }); });
  auto first = cluster_.session({"ps", 0}), second = cluster_.session({"ps", 1});
  first->run(initializer(a, b));

  std::thread other([&] {
    for (int i = 0; i < 10; ++i) second->run(back);
  });
  for (int i = 0; i < 10; ++i) first->run(forth);
  other.join();

  EXPECT_EQ(first->value(a).item<int64_t>(), 200);
  EXPECT_EQ(first->value(b).item<int64_t>(), 200);
}

TEST_P(VariableLocks, KeepADriverFromHoldingItsOwnVariablesWhileOthersWork) {
  Variable own = number("own", "/job:worker/task:0"), far = number("far", "/job:ps/task:0");
  auto step = function([&] {
    far.assign_add(torch::ones({}, torch::kLong));
    own.assign_add(far.value());
  });
  auto session = cluster_.session({"worker", 0});
  session->run(initializer(own, far));
  auto cell = cluster_.worker({"ps", 0}).store().find("far");
  ASSERT_TRUE(cell);

  cell->begin_write();  // nobody can write to `far` now
  std::thread runner([&] { session->run(step); });
  EXPECT_TRUE(testing_support::eventually([&] { return cell->waiting_writers() == 1; }));
  cluster_.worker({"worker", 0}).store().find("own")->read();  // the step waits, but not with this one
  cell->end_write();
  runner.join();

  EXPECT_EQ(session->value(own).item<int64_t>(), 1);
}

TEST_P(VariableLocks, EndAWaitWithItsCall) {
  Variable v = number("v", "/job:ps/task:0");
  auto add = function([&] { v.assign_add(torch::ones({}, torch::kLong)); });
  auto session = cluster_.session();
  session->run(initializer(v));
  session->run(add);
  auto cell = cluster_.worker({"ps", 0}).store().find("v");

  cell->begin_write();
  const auto failure =
      testing_support::caught([&] { session->run_with({.timeout = std::chrono::milliseconds(50)}, add); });
  EXPECT_TRUE(testing_support::eventually([&] { return cell->waiting_writers() == 0; }));
  cell->end_write();

  EXPECT_EQ(failure.code(), StatusCode::kDeadlineExceeded);
  session->run(add);
  EXPECT_EQ(session->value(v).item<int64_t>(), 2);
}

}  // namespace
}  // namespace muster
