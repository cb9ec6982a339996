#include "muster/distribute/coordinator/cluster_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "muster/base/log.h"
#include "muster/base/test_wait.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/trace/device_scope.h"

namespace muster {
namespace {

using namespace ::muster::testing_support;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// What a coordinator does it does over both transports.
class Coordinators : public ::testing::TestWithParam<Transport> {
 protected:
  ~Coordinators() override { gate_->open(); }

  void use(CoordinatorOptions options) { coordinator_ = std::make_unique<ClusterCoordinator>(strategy_, options); }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  InProcessCluster cluster_{{.workers = 3, .ps = 2, .transport = GetParam(), .worker = Gate::before_all(gate_)}};
  ParameterServerStrategy strategy_ = strategy_of(cluster_, GetParam());
  Variable v_ = strategy_.make<Variable>(torch::zeros({}));
  std::unique_ptr<ClusterCoordinator> coordinator_ = std::make_unique<ClusterCoordinator>(strategy_);
};

INSTANTIATE_TEST_SUITE_P(Transports, Coordinators, ::testing::Values(Transport::kGrpc, Transport::kLocal),
                         [](const auto& info) { return info.param == Transport::kGrpc ? "Grpc" : "Local"; });

// ---- schedule, join, done, fetch
TEST_P(Coordinators, RunEachScheduledFunctionOnce) {
  auto add = function([&](const at::Tensor& delta) {
    v_.assign_add(delta);
    return delta * 2;
  });

  std::vector<RemoteValue<at::Tensor>> values;
  for (int i = 0; i < 20; ++i) values.push_back(coordinator_->schedule(add, torch::full({}, 1.0F)));
  coordinator_->join();

  EXPECT_EQ(v_.value().item<float>(), 20);
  for (const auto& value : coordinator_->fetch(values)) EXPECT_EQ(value.item<float>(), 2);
  EXPECT_TRUE(coordinator_->done());
}

TEST_P(Coordinators, JoinWithNothingToDoAndAsOftenAsOneLikes) {
  coordinator_->join();
  auto add = function([&] { v_.assign_add(torch::ones({})); });

  for (int i = 0; i < 5; ++i) coordinator_->schedule(add);
  for (int i = 0; i < 3; ++i) coordinator_->join();

  EXPECT_TRUE(coordinator_->done());
  EXPECT_TRUE(coordinator_->join(std::chrono::milliseconds(0)));
  EXPECT_EQ(v_.value().item<float>(), 5);
}

TEST_P(Coordinators, FetchWhatTheFunctionReturnsWhateverItsShape) {
  auto nothing = function([&] { v_.assign_add(torch::ones({})); });
  auto pair = function([](at::Tensor x) { return std::make_pair(x + 1, std::vector<at::Tensor>{x, x * 3}); });

  RemoteValue<void> none = coordinator_->schedule(nothing);
  auto both = coordinator_->schedule(pair, torch::full({2}, 2.0F));
  coordinator_->fetch(none);
  auto [sum, list] = coordinator_->fetch(both);

  EXPECT_EQ(v_.value().item<float>(), 1);
  EXPECT_TRUE(torch::equal(sum, torch::full({2}, 3.0F)));
  EXPECT_TRUE(torch::equal(list.at(1), torch::full({2}, 6.0F)));
  EXPECT_TRUE(torch::equal(coordinator_->fetch(both).first, sum)) << "and again";
}

TEST_P(Coordinators, SendAnArgumentThatIsAViewAsWhatItShows) {
  auto twice = function([](at::Tensor x) { return x * 2; });
  at::Tensor table = torch::arange(12, torch::kFloat).reshape({3, 4});

  auto row = coordinator_->schedule(twice, table[1]);
  auto turned = coordinator_->schedule(twice, table.t());

  EXPECT_TRUE(torch::equal(row.fetch(), table[1] * 2));
  EXPECT_TRUE(torch::equal(turned.fetch(), table.t() * 2));
}

TEST_P(Coordinators, LetTheCallerLimitHowLongItWaits) {
  auto numbers = coordinator_->create_per_worker_dataset(Dataset::range(5));
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });

  auto value = coordinator_->schedule(take, numbers);

  EXPECT_FALSE(coordinator_->join(std::chrono::milliseconds(1)));
  EXPECT_FALSE(coordinator_->done());
  EXPECT_FALSE(value.ready());
  EXPECT_EQ(caught([&] { value.fetch(std::chrono::milliseconds(1)); }).code(), StatusCode::kDeadlineExceeded);
  gate_->open();
  EXPECT_EQ(value.fetch().item<int64_t>(), 0);
  EXPECT_TRUE(value.ready());
  EXPECT_EQ(caught([] { RemoteValue<at::Tensor>().fetch(); }).code(), StatusCode::kFailedPrecondition);
}

TEST_P(Coordinators, OfOneStrategyAreOneAndTheSame) {
  ClusterCoordinator second(strategy_);
  auto add = function([&] { v_.assign_add(torch::ones({})); });

  coordinator_->schedule(add);
  second.join();

  EXPECT_EQ(&second.metrics(), &coordinator_->metrics());
  EXPECT_EQ(v_.value().item<float>(), 1);
  coordinator_.reset();
  second.schedule(add);
  second.join();
  EXPECT_EQ(v_.value().item<float>(), 2) << "it lives as long as one of them";
}

TEST_P(Coordinators, FollowEachOtherOverOneStrategy) {
  auto add = function([&] { v_.assign_add(torch::ones({})); });

  for (int i = 0; i < 3; ++i) {
    coordinator_->schedule(add);
    coordinator_->join();
    coordinator_.reset();
    use({});
  }

  EXPECT_EQ(v_.value().item<float>(), 3);
}

TEST_P(Coordinators, LeaveNothingBehind) {
  auto each = coordinator_->create_per_worker_variable(torch::zeros({}));
  auto numbers = coordinator_->create_per_worker_dataset(Dataset::range(100));
  gate_->open();
  auto take = function([&](Iterator& it) { Variable(each).assign_add(it.next<1>()[0]); });
  for (int i = 0; i < 30; ++i) coordinator_->schedule(take, numbers);
  coordinator_->join();

  coordinator_.reset();

  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cluster_.worker({"worker", i}).status().programs, 0u) << i;
    EXPECT_EQ(cluster_.worker({"worker", i}).status().sources, 0u) << i;
  }
}

TEST_P(Coordinators, RefuseADepthOfNothing) {
  coordinator_.reset();

  EXPECT_EQ(caught([&] { use({.depth = 0}); }).code(), StatusCode::kInvalidArgument);
}

// ---- Many
TEST_P(Coordinators, TakeFunctionsFromSeveralThreads) {
  auto add = function([&](at::Tensor x) { v_.assign_add(x); });

  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) coordinator_->schedule(add, torch::ones({}));
      });
    }
  }
  coordinator_->join();

  EXPECT_EQ(v_.value().item<float>(), 400);
}

TEST_P(Coordinators, RunThroughAQueueOfTwo) {
  coordinator_.reset();
  use({.queue_capacity = 2});
  auto add = function([&](at::Tensor x) { return v_.assign_add(x).value() + 0; });

  std::vector<RemoteValue<at::Tensor>> values;
  for (int i = 0; i < 200; ++i) values.push_back(coordinator_->schedule(add, torch::ones({})));
  coordinator_->join();

  EXPECT_EQ(v_.value().item<float>(), 200);
  EXPECT_THAT(coordinator_->fetch(values), SizeIs(200));
}

TEST_P(Coordinators, RunAHundredThousandSmallFunctions) {
  auto increment = function([](at::Tensor x) { return x + 1; });

  std::vector<RemoteValue<at::Tensor>> values;
  for (int i = 0; i < 100'000; ++i) {
    auto value = coordinator_->schedule(increment, torch::full({}, static_cast<float>(i)));
    if (i % 1'000 == 0) values.push_back(std::move(value));
  }
  coordinator_->join();

  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i].fetch().item<float>(), 1'000.0F * i + 1);
  EXPECT_EQ(coordinator_->metrics().snapshot().closure_execution.count, 100'000);
}

// ---- One worker
TEST_P(Coordinators, RunAFunctionOnTheWorkerThatIsAskedFor) {
  auto each = coordinator_->create_per_worker_variable(torch::zeros({}));
  auto add = function([&] { return Variable(each).assign_add(torch::ones({})).value() + 0; });

  for (int i = 0; i < 4; ++i) coordinator_->schedule_on(2, add).fetch();

  std::vector<float> values;
  for (const at::Tensor& value : coordinator_->values(each)) values.push_back(value.item<float>());
  EXPECT_THAT(values, ::testing::ElementsAre(0, 0, 4));
  for (int wrong : {-1, 3}) {
    EXPECT_EQ(caught([&] { coordinator_->schedule_on(wrong, add); }).code(), StatusCode::kInvalidArgument);
  }
}

TEST_P(Coordinators, DrawOtherNumbersOnEachWorker) {
  auto draw = function([] { return torch::rand({4}); });

  std::vector<at::Tensor> drawn;
  for (int worker : {0, 1, 2}) drawn.push_back(coordinator_->schedule_on(worker, draw).fetch());

  EXPECT_FALSE(torch::equal(drawn[0], drawn[1]));
  EXPECT_FALSE(torch::equal(drawn[0], drawn[2]));
  EXPECT_FALSE(torch::equal(drawn[1], drawn[2]));
}

TEST_P(Coordinators, DoNotJoinWhatIsForOneWorker) {
  auto numbers = coordinator_->create_per_worker_dataset(Dataset::range(5));
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });

  auto value = coordinator_->schedule_on(1, take, numbers);
  coordinator_->join();

  EXPECT_TRUE(coordinator_->done());
  EXPECT_FALSE(value.ready());
  gate_->open();
  EXPECT_EQ(value.fetch().item<int64_t>(), 0);
}

TEST_P(Coordinators, DoNotEndWhatIsForOneWorkerWhenAnotherFunctionFails) {
  auto numbers = coordinator_->create_per_worker_dataset(Dataset::range(5));
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });
  auto pick = picky();
  auto value = coordinator_->schedule_on(1, take, numbers);
  EXPECT_TRUE(eventually([&] { return gate_->came() == 1; }));

  coordinator_->schedule(pick, bad_index());
  EXPECT_EQ(caught([&] { coordinator_->join(); }).code(), StatusCode::kInvalidArgument);
  gate_->open();

  EXPECT_EQ(value.fetch().item<int64_t>(), 0);
  EXPECT_NO_THROW(coordinator_->join());
}

// ---- Errors of functions
TEST_P(Coordinators, ThrowTheErrorOfAFunctionOnceAndThenGoOn) {
  auto pick = picky();

  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 3; ++i) coordinator_->schedule(pick, good_index());
    coordinator_->schedule(pick, bad_index());
    const Status status = caught([&] { coordinator_->join(); });

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << round << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr("index_select"));
    EXPECT_THAT(status.task(), HasSubstr("/job:worker/"));
    EXPECT_NO_THROW(coordinator_->join());
    EXPECT_TRUE(coordinator_->done());
    EXPECT_EQ(coordinator_->schedule(pick, good_index()).fetch().item<float>(), 1);
  }
}

TEST_P(Coordinators, ThrowTheErrorsOfSeveralFunctionsAsOne) {
  auto pick = picky();

  std::vector<RemoteValue<at::Tensor>> values;
  Status status = caught([&] {
    for (int i = 0; i < 10; ++i) values.push_back(coordinator_->schedule(pick, bad_index()));
    coordinator_->join();
  });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_NO_THROW(coordinator_->join());
  for (const auto& value : values) {
    EXPECT_THAT(caught([&] { value.fetch(); }).code(),
                ::testing::AnyOf(StatusCode::kInvalidArgument, StatusCode::kCancelled));
  }
}

TEST_P(Coordinators, ThrowTheErrorOfAFunctionFromScheduleAndFromDone) {
  auto pick = picky();
  auto until_it_throws = [](const auto& call) {
    Status status;
    EXPECT_TRUE(eventually([&] { return !(status = caught(call)).ok(); }));
    return status.code();
  };

  coordinator_->schedule(pick, bad_index());
  EXPECT_EQ(until_it_throws([&] { coordinator_->schedule(pick, good_index()); }), StatusCode::kInvalidArgument);
  coordinator_->join();
  coordinator_->schedule(pick, bad_index());
  EXPECT_EQ(until_it_throws([&] { coordinator_->done(); }), StatusCode::kInvalidArgument);

  EXPECT_TRUE(coordinator_->done());
}

TEST_P(Coordinators, CancelWhatRunsAndWhatWaitsWhenAFunctionFails) {
  auto endless = function([](at::Tensor x) { return for_ever(x); });
  auto pick = picky();
  std::vector<RemoteValue<at::Tensor>> values;
  RemoteValue<at::Tensor> failing;

  const Status status = caught([&] {
    for (int i = 0; i < 2; ++i) values.push_back(coordinator_->schedule(endless, torch::ones({})));
    failing = coordinator_->schedule(pick, bad_index());
    for (int i = 0; i < 20; ++i) values.push_back(coordinator_->schedule(endless, torch::ones({})));
    coordinator_->join();
  });
  coordinator_->join();

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(caught([&] { failing.fetch(); }).code(), StatusCode::kInvalidArgument);
  std::vector<StatusCode> codes;
  for (const auto& value : values) codes.push_back(caught([&] { value.fetch(); }).code());
  EXPECT_THAT(codes, Each(StatusCode::kCancelled));
}

TEST_P(Coordinators, RunNothingAnyMoreWhenTheyThrow) {
  auto add_slowly = function([&](at::Tensor x) { v_.assign_add(slowly(x, 2'000)); });
  auto pick = picky();

  for (int round = 0; round < 4; ++round) {
    const Status status = caught([&] {
      for (int i = 0; i < 6; ++i) coordinator_->schedule(add_slowly, torch::ones({}));
      coordinator_->schedule(pick, bad_index());
      coordinator_->join();
    });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    const float then = v_.value().item<float>();

    auto barrier = function([](at::Tensor x) { return slowly(x); });
    for (int i = 0; i < 3; ++i) coordinator_->schedule_on(i, barrier, torch::ones({})).fetch();
    EXPECT_EQ(v_.value().item<float>(), then) << round;
  }
}

// ---- Results
TEST(RemoteResult, GoesFromNotReadyToReadyAlsoByWayOfAborted) {
  RemoteResult result;
  EXPECT_EQ(result.state(), RemoteResult::State::kNotReady);

  result.abort(Status(StatusCode::kCancelled, "not now"));
  EXPECT_EQ(result.state(), RemoteResult::State::kAborted);
  EXPECT_EQ(caught([&] { result.fetch({}); }).code(), StatusCode::kCancelled);
  result.set({torch::ones({})});

  EXPECT_EQ(result.state(), RemoteResult::State::kReady);
  result.abort(Status(StatusCode::kCancelled, "too late"));
  EXPECT_THAT(result.fetch({}), SizeIs(1));
}

// ---- What it spends its time on
TEST(CoordinatorReports, TellWhatTheTasksHaveDoneSinceTheLastOne) {
  InProcessCluster cluster({.workers = 2, .ps = 1});
  ParameterServerStrategy strategy(cluster.resolver());
  Variable v = strategy.make<Variable>(torch::zeros({}));
  ClusterCoordinator coordinator(strategy);
  auto add = function([&] { v.assign_add(torch::ones({})); });
  for (int i = 0; i < 200; ++i) coordinator.schedule(add);
  coordinator.join();

  const CoordinatorReport busy = coordinator.report();
  EXPECT_GT(busy.closures_per_second, 0);
  EXPECT_GT(busy.chief_cpu, 0);
  ASSERT_EQ(busy.workers.size(), 2u);
  ASSERT_EQ(busy.parameter_servers.size(), 1u);
  double running = 0, peers = 0;
  for (const TaskReport& worker : busy.workers) {
    EXPECT_TRUE(worker.status.ok()) << worker.status;
    EXPECT_GE(worker.cores, 1);
    running += worker.running;
    peers += worker.peers;
  }
  EXPECT_GT(running, 0);
  EXPECT_GT(peers, 0) << "they write to a parameter server";
  EXPECT_THAT(busy.to_string(), HasSubstr("/job:ps/replica:0/task:0"));
  const WorkerStatus ps = cluster.peers()->worker("/job:ps/replica:0/task:0")->status();
  EXPECT_GT(ps.machine_cores, 0) << "by which it is told how busy its machine is";
  EXPECT_GT(ps.machine_idle_seconds, 0);

  const CoordinatorReport idle = coordinator.report();
  EXPECT_EQ(idle.limit(), Limit::kNothing);
  EXPECT_EQ(idle.closures_per_second, 0);
}

TEST(CoordinatorReports, CountClosuresThatStillRunAndAreSaidOnceInTheLog) {
  LogCapture log;
  const auto gate = std::make_shared<Gate>();
  InProcessCluster cluster({.workers = 1, .ps = 1, .worker = Gate::before_all(gate)});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy, {.tidy_every = std::chrono::milliseconds(5)});
  auto numbers = coordinator.create_per_worker_dataset([] { return Dataset::range(1, 2).repeat(); });
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });
  const std::string words = "0 closures a second, limited by ";

  coordinator.schedule(take, numbers);
  EXPECT_TRUE(eventually([&] { return log.contains(words); }));
  EXPECT_TRUE(eventually([&] { return coordinator.report().limit() == Limit::kInput; })) << "it waits for its element";
  gate->open();
  coordinator.join();

  const std::vector<LogLine> lines = log.lines();
  EXPECT_EQ(
      std::ranges::count_if(lines, [&](const LogLine& line) { return line.text.find(words) != std::string::npos; }), 1);
}

TEST(CoordinatorReports, NameAWorkerThatIsLost) {
  InProcessCluster cluster({.workers = 2, .ps = 1});
  ParameterServerStrategy strategy(cluster.resolver());
  Variable v = strategy.make<Variable>(torch::zeros({}));
  ClusterCoordinator coordinator(strategy);
  auto add = function([&] { v.assign_add(torch::ones({})); });
  coordinator.schedule(add);
  coordinator.join();

  cluster.stop({"worker", 1});
  for (int i = 0; i < 20; ++i) coordinator.schedule(add);
  coordinator.join();
  const CoordinatorReport report = coordinator.report();

  EXPECT_THAT(report.sentence(), HasSubstr("not there: /job:worker/replica:0/task:1"));
  EXPECT_NE(report.limit(), Limit::kChief);
  EXPECT_FALSE(report.workers[1].status.ok());
}

// ---- Who sees whom
TEST(ClusterCoordinatorDevices, OfAnotherWorkerAreNotSeen) {
  InProcessCluster cluster({.workers = 2, .ps = 2});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  auto on = [](const std::string& device) {
    return function([device](at::Tensor x) {
      DeviceScope there(device);
      return x * 2;
    });
  };

  EXPECT_EQ(coordinator.schedule_on(0, on("/job:ps/task:1"), torch::ones({})).fetch().item<float>(), 2);
  EXPECT_EQ(coordinator.schedule_on(0, on("/job:worker/task:0"), torch::ones({})).fetch().item<float>(), 2);

  const Status status = caught([&] { coordinator.schedule_on(0, on("/job:worker/task:1"), torch::ones({})); });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(status.message(), HasSubstr("a device of worker 1, and was to run on worker 0"));
}

}  // namespace
}  // namespace muster
