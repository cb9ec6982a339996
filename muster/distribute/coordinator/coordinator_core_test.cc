#include "muster/distribute/coordinator/coordinator_core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>

#include <thread>

#include "muster/base/log.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/runtime/worker/restart.h"

namespace muster {
namespace {

using namespace ::muster::testing_support;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;

const TaskId kWorker0{"worker", 0}, kWorker1{"worker", 1}, kPs0{"ps", 0}, kPs1{"ps", 1};

// A cluster whose tasks die. Over real connections: a worker of this process cannot be torn from who holds it.
class Faults : public ::testing::Test {
 protected:
  void use(CoordinatorOptions options) {
    coordinator_.reset();
    coordinator_ = std::make_unique<ClusterCoordinator>(strategy_, options);
  }
  void restart(const TaskId& task) {
    cluster_.stop(task);
    cluster_.start(task);
  }
  float counted() const { return v_.value().item<float>(); }

  LogCapture quiet_;
  InProcessCluster cluster_{{.workers = 2, .ps = 2}};
  ParameterServerStrategy strategy_{cluster_.resolver()};
  Variable v_ = strategy_.make<Variable>(torch::zeros({}));      // on ps 0
  Variable other_ = strategy_.make<Variable>(torch::zeros({}));  // on ps 1
  std::unique_ptr<ClusterCoordinator> coordinator_ = std::make_unique<ClusterCoordinator>(strategy_);
};

// ---- Workers
TEST_F(Faults, LetAWorkerBeRestartedBetweenTwoFunctions) {
  auto add = function([&] { v_.assign_add(torch::ones({})); });
  for (int i = 0; i < 2; ++i) coordinator_->schedule(add);
  coordinator_->join();

  for (const TaskId& task : {kWorker0, kWorker1}) restart(task);
  for (int i = 0; i < 2; ++i) coordinator_->schedule(add);
  coordinator_->join();

  EXPECT_EQ(counted(), 4);
}

TEST_F(Faults, LetAWorkerBeKilledInTheMiddleOfAFunction) {
  auto add = function([&](at::Tensor x) { v_.assign_add(slowly(x)); });
  for (int i = 0; i < 4; ++i) coordinator_->schedule(add, torch::ones({}));

  cluster_.stop(kWorker0);
  cluster_.start(kWorker0);
  coordinator_->join();

  EXPECT_THAT(counted(), Ge(4));
}

TEST_F(Faults, LetAllWorkersBeKilledAndTheSameOneTwice) {
  auto add = function([&](at::Tensor x) { return v_.assign_add(slowly(x, 2'000)).value() + 0; });
  auto more = [&] {
    for (int i = 0; i < 10; ++i) coordinator_->schedule(add, torch::ones({}));
  };

  more();
  for (const TaskId& task : {kWorker0, kWorker1}) cluster_.stop(task);
  more();
  for (const TaskId& task : {kWorker0, kWorker1}) cluster_.start(task);
  coordinator_->join();
  EXPECT_THAT(counted(), Ge(20));
  more();
  for (int i = 0; i < 2; ++i) restart(kWorker1);
  more();
  coordinator_->join();

  EXPECT_THAT(counted(), Ge(40));
  EXPECT_TRUE(eventually([&] { return coordinator_->workers_up() == 2; }));
}

TEST_F(Faults, LetAWorkerBeMissingFromTheBeginning) {
  for (Transport transport : {Transport::kGrpc, Transport::kLocal}) {
    InProcessCluster cluster({.workers = 2, .ps = 1, .transport = transport});
    cluster.stop(kWorker0);
    ParameterServerStrategy strategy = strategy_of(cluster, transport);
    Variable v = strategy.make<Variable>(torch::zeros({}));
    ClusterCoordinator coordinator(strategy);
    auto add = function([&] { return v.assign_add(torch::ones({})).value() + 0; });

    for (int i = 0; i < 10; ++i) coordinator.schedule(add);
    coordinator.join();
    EXPECT_EQ(v.value().item<float>(), 10);
    auto here = coordinator.schedule_on(0, add);
    cluster.start(kWorker0);

    EXPECT_EQ(here.fetch().item<float>(), 11);
  }
}

TEST_F(Faults, DoNotMixUpTheFunctionsOfARestartedWorker) {
  auto plus = function([](at::Tensor x) { return x + 1; });
  auto times = function([](at::Tensor x) { return x * 10; });
  const at::Tensor x = torch::full({}, 3.0F);
  EXPECT_EQ(coordinator_->schedule_on(0, plus, x).fetch().item<float>(), 4);

  restart(kWorker0);
  // The new incarnation gives the next function the number that the old one gave the first.
  std::vector<RemoteValue<at::Tensor>> products, sums;
  for (int i = 0; i < 10; ++i) {
    products.push_back(coordinator_->schedule_on(0, times, x));
    sums.push_back(coordinator_->schedule_on(0, plus, x));
  }

  for (const auto& value : products) EXPECT_EQ(value.fetch().item<float>(), 30);
  for (const auto& value : sums) EXPECT_EQ(value.fetch().item<float>(), 4);
}

TEST_F(Faults, GiveARestartedWorkerItsDatasetsAndVariablesAgain) {
  auto numbers = coordinator_->create_per_worker_dataset([] { return Dataset::range(7, 1'000); });
  auto each = coordinator_->create_per_worker_variable(torch::full({}, 5, torch::kLong));
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });
  auto add = function([&](at::Tensor x) { return Variable(each).assign_add(x).value() + 0; });
  auto both = function([&](Iterator& it) { return Variable(each).assign_add(it.next<1>()[0]).value() + 0; });
  const at::Tensor one = torch::ones({}, torch::kLong);
  for (int i = 0; i < 3; ++i) coordinator_->schedule_on(0, take, numbers).fetch();
  coordinator_->schedule_on(0, add, one).fetch();

  restart(kWorker0);
  EXPECT_EQ(coordinator_->schedule_on(0, both, numbers).fetch().item<int64_t>(), 5 + 7) << "a function that is new";
  EXPECT_EQ(coordinator_->schedule_on(0, take, numbers).fetch().item<int64_t>(), 8);
  restart(kWorker0);
  EXPECT_EQ(coordinator_->schedule_on(0, add, one).fetch().item<int64_t>(), 6);
  EXPECT_EQ(coordinator_->schedule_on(0, take, numbers).fetch().item<int64_t>(), 7);
  restart(kWorker0);

  EXPECT_EQ(coordinator_->values(each).at(0).item<int64_t>(), 5);
}

TEST_F(Faults, GiveARestartedWorkerTheTracesForAllShapesOfElements) {
  auto batches = coordinator_->create_per_worker_dataset([] { return Dataset::range(1, 11).batch(4).repeat(); });
  auto step = function([&](Iterator& it) {
    v_.assign_add(torch::ones({}));
    return it.next<1>()[0].sum();
  });
  auto sums = [&] {
    std::vector<int64_t> taken;
    for (int i = 0; i < 4; ++i) {
      taken.push_back(coordinator_->schedule_on(0, step, batches).fetch().item<int64_t>());
    }
    return taken;
  };
  EXPECT_THAT(sums(), ElementsAre(10, 26, 19, 10));

  restart(kWorker0);
  EXPECT_THAT(sums(), ElementsAre(10, 26, 19, 10)) << "it begins anew";
  for (int i = 0; i < 50; ++i) coordinator_->schedule(step, batches);
  restart(kWorker0);
  coordinator_->join();

  EXPECT_THAT(counted(), Ge(58));
  EXPECT_EQ(step.stats().misses, 2);
}

TEST_F(Faults, LetDatasetsBeMadeWhileAWorkerIsDown) {
  auto add = function([&](Iterator& it) { v_.assign_add(it.next<1>()[0].to(torch::kFloat)); });
  cluster_.stop(kWorker0);

  for (int round = 0; round < 3; ++round) {
    auto ones = coordinator_->create_per_worker_dataset([] { return Dataset::range(1, 2).repeat(); });
    for (int i = 0; i < 3; ++i) coordinator_->schedule(add, ones.iterator());
    if (round == 1) cluster_.start(kWorker0);
  }
  coordinator_->join();

  EXPECT_EQ(counted(), 9);
}

TEST_F(Faults, NameTheWorkerThatDoesNotAnswer) {
  auto each = coordinator_->create_per_worker_variable(torch::zeros({}));
  coordinator_->values(each);
  cluster_.stop(kWorker1);

  const Status status = caught([&] { coordinator_->values(each); });

  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_EQ(status.task(), kWorker1.to_string());
}

TEST_F(Faults, LeaveResultsWhereTheyAreReadable) {
  auto twice = function([](at::Tensor x) { return x * 2; });
  auto fetched = coordinator_->schedule(twice, torch::ones({})),
       not_yet = coordinator_->schedule(twice, torch::ones({}));
  fetched.fetch();
  coordinator_->join();

  for (const TaskId& task : {kWorker0, kWorker1}) cluster_.stop(task);

  EXPECT_EQ(fetched.fetch().item<float>(), 2);
  EXPECT_EQ(not_yet.fetch().item<float>(), 2);
}

TEST_F(Faults, LeaveVariablesReadableWhileAWorkerComesAndGoes) {
  auto add = function([&](at::Tensor x) { v_.assign_add(x); });
  std::jthread reader([&](const std::stop_token& stop) {
    for (float last = 0; !stop.stop_requested();) {
      const float now = counted();
      EXPECT_THAT(now, Ge(last));
      last = now;
    }
  });

  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 5; ++i) coordinator_->schedule(add, torch::ones({}));
    restart(kWorker0);
  }
  coordinator_->join();

  EXPECT_THAT(counted(), Ge(15));
}

TEST_F(Faults, OfAWorkerDoNotHideTheErrorOfAFunction) {
  use({.depth = 4, .overlap = true});
  auto endless = function([](at::Tensor x) { return for_ever(x); });
  auto pick = picky();
  std::vector<RemoteValue<at::Tensor>> values;
  for (int i = 0; i < 2; ++i) values.push_back(coordinator_->schedule(endless, torch::ones({})));

  cluster_.stop(kWorker0);
  const Status status = caught([&] {
    coordinator_->schedule(pick, bad_index());
    coordinator_->join();
  });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  for (const auto& value : values) {
    EXPECT_EQ(caught([&] { value.fetch(); }).code(), StatusCode::kCancelled);
  }
  cluster_.start(kWorker0);
  for (int i = 0; i < 3; ++i) coordinator_->schedule(pick, good_index());
  EXPECT_NO_THROW(coordinator_->join());
}

TEST_F(Faults, EndWhatIsForAWorkerThatIsGivenUp) {
  use({.worker_recovery_limit = std::chrono::milliseconds(1)});
  auto twice = function([](at::Tensor x) { return x * 2; });
  cluster_.stop(kWorker0);

  auto lost = coordinator_->schedule_on(0, twice, torch::ones({}));
  const Status status = caught([&] { lost.fetch(); });
  const Status later = caught([&] { coordinator_->schedule_on(0, twice, torch::ones({})).fetch(); });

  for (const Status& gone : {status, later}) {
    EXPECT_EQ(gone.code(), StatusCode::kUnavailable) << gone;
    EXPECT_EQ(gone.task(), kWorker0.to_string());
  }
  EXPECT_EQ(coordinator_->schedule(twice, torch::ones({})).fetch().item<float>(), 2) << "by the other one";
  cluster_.stop(kWorker1);
  coordinator_->schedule(twice, torch::ones({}));
  const Status nobody = caught([&] { coordinator_->join(); });
  EXPECT_EQ(nobody.code(), StatusCode::kUnavailable) << nobody;
  EXPECT_THAT(nobody.message(), HasSubstr(kWorker0.to_string()));
  EXPECT_THAT(nobody.message(), HasSubstr(kWorker1.to_string()));
}

// ---- The end
TEST_F(Faults, AreNoneWhenTheCoordinatorEndsInTheMiddle) {
  auto endless = function([](at::Tensor x) { return for_ever(x); });
  std::vector<RemoteValue<at::Tensor>> values;
  for (int i = 0; i < 20; ++i) values.push_back(coordinator_->schedule(endless, torch::ones({})));
  values.push_back(coordinator_->schedule_on(1, endless, torch::ones({})));
  EXPECT_TRUE(eventually([&] { return coordinator_->metrics().inflight_closures > 0; }));

  coordinator_.reset();

  for (const auto& value : values) EXPECT_EQ(caught([&] { value.fetch(); }).code(), StatusCode::kCancelled);
}

TEST_F(Faults, DoNotHoldUpTheEndOfTheCoordinator) {
  auto endless = function([](at::Tensor x) { return for_ever(x); });
  auto numbers = coordinator_->create_per_worker_dataset(Dataset::range(5));
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });
  std::vector<RemoteValue<at::Tensor>> values;
  for (int i = 0; i < 6; ++i) values.push_back(coordinator_->schedule(endless, torch::ones({})));
  for (const TaskId& task : {kWorker0, kWorker1, kPs1}) cluster_.stop(task);
  values.push_back(coordinator_->schedule(take, numbers));

  coordinator_.reset();

  for (const auto& value : values) EXPECT_EQ(caught([&] { value.fetch(); }).code(), StatusCode::kCancelled);
}

// ---- Parameter servers
TEST_F(Faults, OfAParameterServerEndTheCoordinator) {
  auto add = function([&](at::Tensor x) {
    v_.assign_add(x);
    other_.assign_add(x);
  });
  coordinator_->schedule(add, torch::ones({}));
  coordinator_->join();

  cluster_.stop(kPs1);
  coordinator_->schedule(add, torch::ones({}));

  for (int i = 0; i < 3; ++i) {
    const Status joined = caught([&] { coordinator_->join(); });
    const Status scheduled = caught([&] { coordinator_->schedule(add, torch::ones({})); });
    for (const Status& status : {joined, scheduled}) {
      EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
      EXPECT_EQ(status.task(), kPs1.to_string());
      EXPECT_THAT(status.message(), HasSubstr(kPs1.to_string()));
    }
  }
  EXPECT_EQ(coordinator_->workers_up(), 2u) << "the workers are not to blame";
}

TEST_F(Faults, OfAParameterServerAreSeenWhileNoWorkerIsThere) {
  auto add = function([&](at::Tensor x) { v_.assign_add(x); });
  coordinator_->schedule(add, torch::ones({}));
  coordinator_->join();

  for (const TaskId& task : {kWorker0, kWorker1, kPs0}) cluster_.stop(task);
  coordinator_->schedule(add, torch::ones({}));
  const Status status = caught([&] { coordinator_->join(); });

  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_EQ(status.task(), kPs0.to_string());
}

TEST_F(Faults, OfAParameterServerAreSeenWhileItsWorkersComeBack) {
  auto add = function([&](at::Tensor x) { v_.assign_add(slowly(x, 1'000)); });
  for (int i = 0; i < 10; ++i) coordinator_->schedule(add, torch::ones({}));

  for (const TaskId& task : {kWorker0, kWorker1, kPs0}) cluster_.stop(task);
  for (const TaskId& task : {kWorker0, kWorker1}) cluster_.start(task);
  const Status status = caught([&] {
    coordinator_->schedule(add, torch::ones({}));
    coordinator_->join();
  });

  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_EQ(status.task(), kPs0.to_string());
}

TEST_F(Faults, NeverLetARestartedParameterServerPassForTheOldOne) {
  auto add = function([&](at::Tensor x) { v_.assign_add(x); });
  auto set = function([&](at::Tensor x) { v_.assign(x); });
  auto only_other = function([&](at::Tensor x) { return other_.assign_add(x).value() + 0; });
  coordinator_->schedule(add, torch::ones({}));
  coordinator_->join();

  restart(kPs0);
  const Status read = caught([&] { v_.value(); }), written = caught([&] { v_.assign(torch::ones({})); }),
               added = caught([&] { v_.assign_add(torch::ones({})); }),
               made = caught([&] { strategy_.make<Variable>(torch::ones({})); });  // round robin: on ps 0
  for (const Status& status : {read, written, added, made}) {
    EXPECT_TRUE(is_restart(status)) << status;
    EXPECT_EQ(status.task(), kPs0.to_string());
  }
  EXPECT_EQ(coordinator_->schedule(only_other, torch::ones({})).fetch().item<float>(), 1);
  coordinator_->schedule(set, torch::ones({}));  // which the workers have not seen before
  const Status status = caught([&] { coordinator_->join(); });

  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_EQ(status.task(), kPs0.to_string());
  EXPECT_EQ(caught([&] { coordinator_->schedule(add, torch::ones({})); }).code(), StatusCode::kUnavailable);
  for (const VariableInfo& variable : cluster_.worker(kPs0).variables()) EXPECT_FALSE(variable.initialized);
}

TEST_F(Faults, OfARestartedParameterServerEndAFunctionThatTheWorkersKnow) {
  auto add = function([&](at::Tensor x) { v_.assign_add(x); });
  for (int i = 0; i < 10; ++i) coordinator_->schedule(add, torch::ones({}));
  coordinator_->join();

  restart(kPs0);
  const Status status = caught([&] {
    for (int i = 0; i < 10; ++i) coordinator_->schedule(add, torch::ones({}));
    coordinator_->join();
  });

  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_EQ(status.task(), kPs0.to_string());
}

// ---- What is told
TEST_F(Faults, AreCountedOncePerLoss) {
  auto slow = function([](at::Tensor x) { return slowly(x); });
  for (int worker : {0, 1}) coordinator_->schedule_on(worker, slow, torch::ones({})).fetch();
  EXPECT_EQ(coordinator_->metrics().snapshot().worker_failures, 0);
  for (int i = 0; i < 4; ++i) coordinator_->schedule(slow, torch::ones({}));
  EXPECT_TRUE(eventually([&] { return coordinator_->metrics().inflight_closures >= 2; }));

  restart(kWorker0);
  coordinator_->join();
  EXPECT_TRUE(eventually([&] { return coordinator_->metrics().snapshot().server_def_update.count == 1; }));

  const MetricsSnapshot metrics = coordinator_->metrics().snapshot();
  EXPECT_EQ(metrics.worker_failures, 1);
  EXPECT_EQ(metrics.closure_execution.count, 6);
  EXPECT_EQ(metrics.queued_closures, 0);
  EXPECT_EQ(metrics.inflight_closures, 0);
}

TEST_F(Faults, AreSeenInTheStatesOfTheTasks) {
  auto states = [&] { return coordinator_->task_states(); };
  EXPECT_THAT(states(), ::testing::AllOf(::testing::SizeIs(4), Each(Status())));

  cluster_.stop(kWorker0);
  std::vector<Status> down = states();
  EXPECT_EQ(down[0].code(), StatusCode::kUnavailable);
  EXPECT_EQ(down[0].task(), kWorker0.to_string());
  down.erase(down.begin());
  EXPECT_THAT(down, Each(Status()));
  cluster_.start(kWorker0);
  EXPECT_TRUE(eventually([&] {  // a connection that has failed is not tried again at once
    return std::ranges::all_of(states(), [](const Status& state) { return state.ok(); });
  }));
  cluster_.stop(kPs1);

  EXPECT_EQ(states()[3].code(), StatusCode::kUnavailable);
  EXPECT_EQ(states()[3].task(), kPs1.to_string());
}

}  // namespace
}  // namespace muster
