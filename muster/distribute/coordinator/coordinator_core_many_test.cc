#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <thread>

#include "muster/base/log.h"
#include "muster/distribute/coordinator/coordinator_core.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/rpc/rpc_faults.h"
#include "muster/rpc/test_relay.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/trace/device_scope.h"

namespace muster {
namespace {

using namespace ::muster::testing_support;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::Le;
using ::testing::SizeIs;

// ---- Many workers
void schedule_many(ClusterCoordinator& coordinator, const auto& step, int times) {
  for (int i = 0; i < times; ++i) coordinator.schedule(step, torch::ones({}));
}

TEST(ManyWorkers, BeginAnewAsAWholeWhenTheFirstParameterServerIsLost) {
  constexpr int kWorkers = 8;
  LogCapture quiet;
  InProcessCluster cluster({.workers = kWorkers, .ps = 2});
  {
    ParameterServerStrategy strategy(cluster.resolver());
    Variable v = strategy.make<Variable>(torch::zeros({}));
    ClusterCoordinator coordinator(strategy);
    auto add = function([&](at::Tensor x) { v.assign_add(x); });
    schedule_many(coordinator, add, 2 * kWorkers);
    coordinator.join();

    cluster.stop({"ps", 0});
    std::vector<Status> states = coordinator.task_states();
    const Status status = caught([&] {
      schedule_many(coordinator, add, 2 * kWorkers);
      coordinator.join();
    });

    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
    EXPECT_EQ(status.task(), "/job:ps/replica:0/task:0");
    ASSERT_EQ(states.size(), kWorkers + 2u);
    EXPECT_EQ(states[kWorkers].task(), "/job:ps/replica:0/task:0");
    states.erase(states.begin() + kWorkers);
    EXPECT_THAT(states, Each(Status())) << "nobody else is to blame";
  }

  for (const TaskId& task : cluster.spec().all_tasks()) {
    if (task != TaskId{"ps", 0}) cluster.stop(task);
    cluster.start(task);
  }
  ParameterServerStrategy strategy(cluster.resolver());
  Variable v = strategy.make<Variable>(torch::zeros({}));
  ClusterCoordinator coordinator(strategy);
  auto add = function([&](at::Tensor x) { v.assign_add(x); });
  schedule_many(coordinator, add, 2 * kWorkers);
  coordinator.join();

  EXPECT_EQ(v.value().item<float>(), 2 * kWorkers);
  EXPECT_THAT(coordinator.task_states(), AllOf(SizeIs(kWorkers + 2), Each(Status())));
}

TEST(ManyWorkers, MayBeDownInTurnWhileACoordinatorConnects) {
  LogCapture quiet;
  InProcessCluster cluster({.workers = 2, .ps = 1});
  cluster.stop({"worker", 0});
  ParameterServerStrategy strategy(cluster.resolver());
  Variable v = strategy.make<Variable>(torch::zeros({}));
  ClusterCoordinator coordinator(strategy);
  auto add = function([&](at::Tensor x) { v.assign_add(x); });

  schedule_many(coordinator, add, 10);
  cluster.start({"worker", 0});
  cluster.stop({"worker", 1});
  schedule_many(coordinator, add, 10);
  coordinator.join();
  EXPECT_THAT(v.value().item<float>(), Ge(20));
  cluster.start({"worker", 1});

  EXPECT_TRUE(eventually([&] { return coordinator.workers_up() == 2; }));
}

TEST(ManyWorkers, AreHeldBackByAParameterServerThatIsSlow) {
#ifdef __SANITIZE_THREAD__
  constexpr int kWorkers = 16;  // it knows only so many threads
#else
  constexpr int kWorkers = 64;
#endif
  constexpr int kSteps = 20 * kWorkers;
  constexpr int64_t kBytes = 1 << 20;  // of each push
  LogCapture quiet;
  InProcessCluster cluster({.workers = kWorkers, .ps = 1});
  ParameterServerStrategy strategy(cluster.resolver());
  Variable v = strategy.make<Variable>(torch::zeros({kBytes / 4}));
  ClusterCoordinator coordinator(strategy);
  // The push waits at its parameter server, which has the variable to itself for a while.
  auto push = function([&](at::Tensor x) {
    at::Tensor gradient = x.expand({kBytes / 4}) + 0;
    DeviceScope on("/job:ps/task:0");
    v.assign_add(slowly(gradient, 3));
  });
  int64_t most = 0;
  auto push_many = [&](int times) {
    for (int i = 0; i < times; ++i) coordinator.schedule(push, torch::ones({}));
    ASSERT_TRUE(eventually([&] {
      most = std::max(most, resident_memory());
      return coordinator.done();
    }));
  };

  // What every worker has under way, and what malloc keeps of it for each of its threads, is there from now on.
  push_many(kSteps / 2);
  [[maybe_unused]] const int64_t before = most;
  push_many(kSteps);

  EXPECT_EQ(v.value()[0].item<float>(), kSteps / 2 + kSteps);
#if !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)  // which keep more than we do, or notes on all of it
  EXPECT_LT(most - before, kSteps * kBytes / 4) << "more pushes take more memory";
#endif
}

// ---- Holes in the network, in which everything vanishes and nobody is told
class BlackHole : public ::testing::Test {
 protected:
  static constexpr int kWorkers = 4, kPs = 2, kSteps = 200;

  BlackHole() {
    std::map<std::string, std::map<int, std::string>> any, among, from_outside;
    for (int i = 0; i < kWorkers; ++i) any["worker"][i] = "127.0.0.1:0";
    for (int i = 0; i < kPs; ++i) any["ps"][i] = "127.0.0.1:0";
    const ClusterSpec ports = ClusterSpec::sparse(any);
    for (const TaskId& task : ports.all_tasks()) {
      Server& server = *(servers_[task] = std::make_unique<Server>(ServerOptions{.cluster = ports, .task = task}));
      among[task.job][task.index] = (among_[task] = std::make_unique<Relay>(server.address()))->address();
      from_outside[task.job][task.index] = (outside_[task] = std::make_unique<Relay>(server.address()))->address();
    }
    for (auto& [task, server] : servers_) server->update_cluster(ClusterSpec::sparse(among));
    strategy_.emplace(SimpleClusterResolver(ClusterSpec::sparse(from_outside), {.rpc_layer = "grpc"}));
    v_.emplace(strategy_->make<Variable>(torch::zeros({})));
    coordinator_ = std::make_unique<ClusterCoordinator>(*strategy_);
  }

  void swallow(const std::vector<TaskId>& tasks, bool on) {
    for (const TaskId& task : tasks) {
      among_.at(task)->swallow(on);
      outside_.at(task)->swallow(on);
    }
  }
  // What the coordinator says and hears.
  void swallow_outside(bool on) {
    for (auto& [task, wire] : outside_) wire->swallow(on);
  }
  float counted() const { return v_->value().item<float>(); }

  LogCapture quiet_;
  // No faults but those below: it keeps calls on the network, as between machines.
  const ScopedRpcFaults on_the_network_{std::make_shared<RpcFaults>(1)};
  std::map<TaskId, std::unique_ptr<Server>> servers_;
  std::map<TaskId, std::unique_ptr<Relay>> among_, outside_;
  std::optional<ParameterServerStrategy> strategy_;
  std::optional<Variable> v_;  // on ps 0
  std::unique_ptr<ClusterCoordinator> coordinator_;
};

const std::vector<TaskId> kHalf = {{"worker", 0}, {"worker", 1}};

TEST_F(BlackHole, OfASecondLosesNothingAndRepeatsNothing) {
  auto add = function([&](at::Tensor x) { v_->assign_add(slowly(x, 10)); });
  schedule_many(*coordinator_, add, 2 * kWorkers);
  coordinator_->join();
  const std::vector<std::function<void(bool)>> holes = {[&](bool on) { swallow({{"ps", 0}}, on); },
                                                        [&](bool on) { swallow(kHalf, on); },
                                                        [&](bool on) { swallow_outside(on); }};

  for (const auto& hole : holes) {
    schedule_many(*coordinator_, add, kSteps);
    hole(true);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    hole(false);
    ASSERT_TRUE(coordinator_->join(kPatience));
  }

  EXPECT_EQ(counted(), 2 * kWorkers + 3 * kSteps);
  EXPECT_EQ(coordinator_->metrics().snapshot().worker_failures, 0);
}

TEST_F(BlackHole, OfHalfOfTheWorkersLeavesTheirWorkToTheOthers) {
  auto add = function([&](at::Tensor x) { v_->assign_add(slowly(x, 10)); });
  schedule_many(*coordinator_, add, 2 * kWorkers);
  coordinator_->join();

  swallow(kHalf, true);
  schedule_many(*coordinator_, add, kSteps);
  ASSERT_TRUE(coordinator_->join(kPatience)) << "the closures of the lost workers are not run by others";
  EXPECT_TRUE(eventually([&] { return coordinator_->workers_up() == kWorkers - kHalf.size(); }));
  EXPECT_THAT(counted(), AllOf(Ge(2 * kWorkers + kSteps), Le(2 * kWorkers + 2 * kSteps)));
  swallow(kHalf, false);

  EXPECT_TRUE(eventually([&] { return coordinator_->workers_up() == kWorkers; }));
}

TEST_F(BlackHole, OfAParameterServerEndsTheCoordinatorAndNotTheVariables) {
  auto add = function([&](at::Tensor x) { v_->assign_add(x); });
  schedule_many(*coordinator_, add, kSteps);
  coordinator_->join();

  swallow({{"ps", 0}}, true);
  schedule_many(*coordinator_, add, kWorkers);
  const Status status = caught([&] { ASSERT_TRUE(coordinator_->join(2 * kPatience)); });
  swallow({{"ps", 0}}, false);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_EQ(status.task(), "/job:ps/replica:0/task:0");
  coordinator_.reset();
  ClusterCoordinator next(*strategy_);
  schedule_many(next, add, kSteps);
  ASSERT_TRUE(next.join(kPatience));

  EXPECT_THAT(counted(), AllOf(Ge(2 * kSteps), Le(2 * kSteps + 2 * kWorkers)));
}

}  // namespace
}  // namespace muster
