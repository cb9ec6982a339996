#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <limits>
#include <thread>

#include "muster/base/log.h"
#include "muster/cluster/server.h"
#include "muster/distribute/coordinator/coordinator_core.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/rpc/rpc_faults.h"
#include "muster/rpc/service_names.h"
#include "muster/trace/control_flow.h"

namespace muster {
namespace {

using namespace ::muster::testing_support;
using ::testing::HasSubstr;

// ---- A network that loses messages
class LossyNetwork : public ::testing::TestWithParam<FaultRates> {};

std::string name_of_rates(const ::testing::TestParamInfo<FaultRates>& info) {
  const char* names[] = {"LosesRequests", "LosesResponses", "RepeatsRequests", "DoesAllOfThat", "LosesHalfOfAll"};
  return names[info.index];
}

INSTANTIATE_TEST_SUITE_P(Rates, LossyNetwork,
                         ::testing::Values(FaultRates{.request_lost = 0.3}, FaultRates{.response_lost = 0.3},
                                           FaultRates{.in_flight = 0.3},
                                           FaultRates{.request_lost = 0.1, .response_lost = 0.1, .in_flight = 0.1},
                                           FaultRates{.request_lost = 0.3, .response_lost = 0.3}),
                         name_of_rates);

TEST_P(LossyNetwork, AppliesEveryFunctionOnce) {
  LogCapture quiet;
  auto faults = std::make_shared<RpcFaults>(11);
  const ScopedRpcFaults lossy(faults);
  InProcessCluster cluster({.workers = 2, .ps = 2, .attempts = 30});
  faults->set("", GetParam());
  ParameterServerStrategy strategy(cluster.resolver(), {.attempts = 30});
  Variable v = strategy.make<Variable>(torch::zeros({})), w = strategy.make<Variable>(torch::zeros({}));
  ClusterCoordinator coordinator(strategy);
  auto numbers = coordinator.create_per_worker_dataset([] { return Dataset::range(1, 2).repeat(); });
  auto step = function([&](Iterator& it) {
    at::Tensor x = it.next<1>()[0].to(torch::kFloat);
    v.assign_add(x);
    w.assign_add(x * 2);
    return x;
  });

  constexpr int kSteps = 100;
  std::vector<RemoteValue<at::Tensor>> values;
  for (int i = 0; i < kSteps; ++i) values.push_back(coordinator.schedule(step, numbers));
  coordinator.join();

  EXPECT_EQ(v.value().item<float>(), kSteps);
  EXPECT_EQ(w.value().item<float>(), 2 * kSteps);
  for (const auto& value : values) EXPECT_EQ(value.fetch().item<float>(), 1);
  EXPECT_GT(faults->drawn(), 20) << "the network was well behaved after all";
  EXPECT_EQ(coordinator.metrics().snapshot().worker_failures, 0);
}

// ---- Short cuts between workers and parameter servers
class ShortCuts : public ::testing::Test {
 protected:
  // Of what the workers ask the parameter servers to do.
  void lose(double share) { faults_->set(worker_rpc::kRun, {.request_lost = share}); }

  LogCapture quiet_;
  std::shared_ptr<RpcFaults> faults_ = std::make_shared<RpcFaults>(3);
  std::optional<ScopedRpcFaults> of_the_cluster_{faults_};
  InProcessCluster cluster_{{.workers = 2, .ps = 1, .attempts = 1}};
  const bool made_ = (of_the_cluster_.reset(), true);
  ParameterServerStrategy strategy_{cluster_.resolver()};
  Variable v_ = strategy_.make<Variable>(torch::zeros({}));
};

TEST_F(ShortCuts, AreToleratedAsOftenAsOneSays) {
  ClusterCoordinator coordinator(strategy_, {.transient_ps_failures = 10'000});
  auto add = function([&](at::Tensor x) { v_.assign_add(x); });

  lose(0.2);
  for (int i = 0; i < 200; ++i) coordinator.schedule(add, torch::ones({}));
  coordinator.join();

  EXPECT_EQ(v_.value().item<float>(), 200) << "what was lost was not done, and what was done was not lost";
  EXPECT_EQ(coordinator.metrics().snapshot().worker_failures, 0) << "the workers are not to blame";
}

TEST_F(ShortCuts, AfterWhichNobodyKnowsWhatWasDoneAreCounted) {
  ClusterCoordinator coordinator(strategy_, {.transient_ps_failures = 10'000});
  auto add = function([&](at::Tensor x) { v_.assign_add(x); });

  faults_->set(worker_rpc::kRun, {.response_lost = 0.2});
  for (int i = 0; i < 200; ++i) coordinator.schedule(add, torch::ones({}));
  coordinator.join();

  const int64_t repeated = coordinator.metrics().snapshot().repeated_closures;
  EXPECT_GT(repeated, 0);
  EXPECT_GT(v_.value().item<float>(), 200);
  EXPECT_LE(v_.value().item<float>(), 200 + repeated);
}

TEST_F(ShortCuts, LoseNothingOfTheDataThatTheFunctionsTake) {
  constexpr int64_t kNumbers = 60;
  Variable counts = strategy_.make<Variable>(torch::zeros({kNumbers}, torch::kLong));
  ClusterCoordinator coordinator(strategy_, {.transient_ps_failures = 10'000});
  auto numbers =
      coordinator.create_per_worker_dataset(Dataset::range(kNumbers).shard(InputContext(), ShardPolicy::kDynamic));
  auto count = function([&](Iterator& it) { counts.assign_add(torch::one_hot(it.next<1>()[0], kNumbers)); });

  lose(0.3);
  const Status ended = caught([&] {
    for (int64_t i = 0; i <= kNumbers; ++i) coordinator.schedule(count, numbers);
    coordinator.join();
  });

  EXPECT_EQ(ended.code(), StatusCode::kOutOfRange) << ended;
  EXPECT_TRUE(torch::equal(counts.value(), torch::ones({kNumbers}, torch::kLong))) << counts.value();
  EXPECT_GT(coordinator.metrics().snapshot().repeated_closures, 0);
}

TEST_F(ShortCuts, LoseNothingOfTheDataThoughOnlyALoopNeedsTheServers) {
  constexpr int64_t kNumbers = 60;
  Variable counts = strategy_.make<Variable>(torch::zeros({kNumbers}, torch::kLong));
  ClusterCoordinator coordinator(strategy_, {.transient_ps_failures = 10'000});
  auto numbers =
      coordinator.create_per_worker_dataset(Dataset::range(kNumbers).shard(InputContext(), ShardPolicy::kDynamic));
  auto count = function([&](Iterator& it) {
    const at::Tensor number = it.next<1>()[0];
    repeat(2, [&](const at::Tensor&) { counts.assign_add(torch::one_hot(number, kNumbers)); });
  });

  lose(0.2);
  const Status ended = caught([&] {
    for (int64_t i = 0; i <= kNumbers; ++i) coordinator.schedule(count, numbers);
    coordinator.join();
  });

  EXPECT_EQ(ended.code(), StatusCode::kOutOfRange) << ended;
  EXPECT_TRUE(counts.value().ge(2).all().item<bool>()) << counts.value();
  EXPECT_GT(coordinator.metrics().snapshot().repeated_closures, 0);
}

TEST_F(ShortCuts, ThatDoNotEndAreTheEnd) {
  ClusterCoordinator coordinator(strategy_);
  auto add = function([&](at::Tensor x) { v_.assign_add(x); });

  lose(1);
  const Status status = caught([&] {
    for (int i = 0; i < 10; ++i) coordinator.schedule(add, torch::ones({}));
    coordinator.join();
  });

  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_EQ(status.task(), "/job:ps/replica:0/task:0");
  EXPECT_THAT(status.message(), HasSubstr("is out of reach of all workers"));
}

TEST_F(ShortCuts, OfManyFunctionsAtOnceAreOne) {
  ClusterCoordinator coordinator(strategy_, {.depth = 8, .overlap = true});
  auto add = function([&](at::Tensor x) {
    v_.assign_add(slowly(x));  // all are under way when the first one is cut off
  });
  for (int worker : {0, 1}) coordinator.schedule_on(worker, add, torch::ones({})).fetch();
  lose(1);

  std::vector<RemoteValue<void>> values;
  for (int i = 0; i < 8; ++i) values.push_back(coordinator.schedule(add, torch::ones({})));
  EXPECT_TRUE(eventually([&] { return faults_->drawn() > 0; }));
  lose(0);
  coordinator.join();

  EXPECT_EQ(v_.value().item<float>(), 10);
}

TEST_F(ShortCuts, OfOneWorkerLeaveTheWorkToTheOthersUntilTheyAreOver) {
  const TaskId second{"worker", 1};
  cluster_.stop(second);
  auto faults = std::make_shared<RpcFaults>(5);
  of_the_cluster_.emplace(faults);
  Server cut_off({.cluster = cluster_.spec(), .task = second, .attempts = 1});
  of_the_cluster_.reset();
  ClusterCoordinator coordinator(strategy_);
  auto add = function([&](at::Tensor x) { v_.assign_add(x); });

  faults->set(worker_rpc::kRun, {.request_lost = 1});
  int scheduled = 0;
  auto some_more = [&] {
    for (int i = 0; i < 10; ++i, ++scheduled) coordinator.schedule(add, torch::ones({}));
    coordinator.join();
  };
  EXPECT_TRUE(eventually([&] {
    some_more();
    return coordinator.metrics().snapshot().worker_failures > 0;
  }));
  some_more();
  faults->set(worker_rpc::kRun, {});

  EXPECT_TRUE(eventually([&] { return coordinator.workers_up() == 2; }));
  coordinator.schedule_on(1, add, torch::ones({})).fetch();
  EXPECT_EQ(v_.value().item<float>(), scheduled + 1);
}

// ---- Parameter servers that do not answer their workers in time
// A worker of which some runs fail so, as often as the test says, before they have done anything.
class LateWorker : public Worker {
 public:
  LateWorker(std::shared_ptr<Worker> behind, std::shared_ptr<std::atomic<int>> late)
      : behind_(std::move(behind)), late_(std::move(late)) {}

  void start_runs(std::vector<ProgramRun> runs, const RunOptions& options, RunsDone done) override {
    if (late_->fetch_sub(1) <= 0) return behind_->start_runs(std::move(runs), options, std::move(done));
    std::vector<RunOutcome> outcomes(runs.size());
    for (RunOutcome& outcome : outcomes) {
      outcome.status = Status(StatusCode::kDeadlineExceeded, "no answer in time", "/job:ps/replica:0/task:0");
    }
    done({}, std::move(outcomes));
  }
  ProgramHandle register_program(const Program& program, const Owner& owner) override {
    return behind_->register_program(program, owner);
  }
  void deregister_program(ProgramHandle handle) override { behind_->deregister_program(handle); }
  std::vector<at::Tensor> run(ProgramHandle handle, std::vector<at::Tensor> arguments,
                              const RunOptions& options) override {
    return behind_->run(handle, std::move(arguments), options);
  }
  void start(ProgramHandle handle, std::vector<at::Tensor> arguments, const RunOptions& options,
             RunDone done) override {
    behind_->start(handle, std::move(arguments), options, std::move(done));
  }
  void open_source(uint64_t number, const std::string& description, const Owner& owner) override {
    behind_->open_source(number, description, owner);
  }
  void renew(const Lease& lease, RenewDone done) override { behind_->renew(lease, std::move(done)); }
  void release(const Lease& lease) override { behind_->release(lease); }
  void close_source(uint64_t number) override { behind_->close_source(number); }
  std::string source_position(uint64_t number) override { return behind_->source_position(number); }
  void hand_out(uint64_t number, const PartsGiven& given, const Cancellation* cancellation, PartsDone wanted) override {
    behind_->hand_out(number, given, cancellation, std::move(wanted));
  }
  void receive(uint64_t meeting, int64_t edge, const RunOptions& options, ReceiveDone done) override {
    behind_->receive(meeting, edge, options, std::move(done));
  }
  void abort(uint64_t meeting, const Status& why) override { behind_->abort(meeting, why); }
  std::vector<VariableInfo> variables() override { return behind_->variables(); }
  std::vector<ShardEntry> save(const std::string& directory, const std::vector<StoredVariable>& variables,
                               const SaveOptions& options) override {
    return behind_->save(directory, variables, options);
  }
  void restore(const std::string& checkpoint, const std::vector<StoredVariable>& variables,
               RestoreStage stage) override {
    behind_->restore(checkpoint, variables, stage);
  }
  void reset(const std::vector<std::string>& containers) override { behind_->reset(containers); }
  WorkerStatus status(bool wait) override { return behind_->status(wait); }
  void start_status(const Cancellation& cancellation, StatusDone done) override {
    behind_->start_status(cancellation, std::move(done));
  }

 private:
  const std::shared_ptr<Worker> behind_;
  const std::shared_ptr<std::atomic<int>> late_;
};

class LatePeers : public Peers {
 public:
  explicit LatePeers(std::shared_ptr<Peers> behind) : behind_(std::move(behind)) {}
  std::shared_ptr<Worker> worker(const std::string& task) override {
    if (!task.starts_with("/job:worker")) return behind_->worker(task);
    return std::make_shared<LateWorker>(behind_->worker(task), late_);
  }
  void be_late(int times) { *late_ = times; }

 private:
  const std::shared_ptr<Peers> behind_;
  const std::shared_ptr<std::atomic<int>> late_ = std::make_shared<std::atomic<int>>(0);
};

TEST(LateParameterServers, AreToleratedOnceForEveryTenWorkers) {
  constexpr int kWorkers = 20, kTolerated = 2, kSteps = 50;
  LogCapture log;
  InProcessCluster cluster({.workers = kWorkers, .ps = 1, .transport = Transport::kLocal});
  auto peers = std::make_shared<LatePeers>(cluster.peers());
  ParameterServerStrategy strategy(cluster.resolver(), peers);
  Variable v = strategy.make<Variable>(torch::zeros({}));
  ClusterCoordinator coordinator(strategy);
  auto add = function([&](at::Tensor x) { v.assign_add(x); });
  auto some_steps = [&] {
    for (int i = 0; i < kSteps; ++i) coordinator.schedule(add, torch::ones({}));
    coordinator.join();
  };

  peers->be_late(kTolerated);
  some_steps();

  EXPECT_EQ(v.value().item<float>(), kSteps) << "what was late is done again";
  EXPECT_EQ(coordinator.metrics().snapshot().worker_failures, 0) << "nobody is to blame";
  EXPECT_TRUE(log.contains("(2 times; 2 are tolerated)"));
  peers->be_late(std::numeric_limits<int>::max());  // for as long as it takes, which is seconds
  const Status status = caught([&] { some_steps(); });
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status;
  EXPECT_EQ(status.task(), "/job:ps/replica:0/task:0");
}

// ---- Back pressure, and what is counted
class HeldBack : public ::testing::TestWithParam<Transport> {
 protected:
  ~HeldBack() override { gate_->open(); }

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  InProcessCluster cluster_{{.workers = 1, .ps = 1, .transport = GetParam(), .worker = Gate::before_all(gate_)}};
  ParameterServerStrategy strategy_ = strategy_of(cluster_, GetParam());
};

INSTANTIATE_TEST_SUITE_P(Transports, HeldBack, ::testing::Values(Transport::kGrpc, Transport::kLocal),
                         [](const auto& info) { return info.param == Transport::kGrpc ? "Grpc" : "Local"; });

TEST_P(HeldBack, WhoSchedulesWaitsWhileTheQueueIsFull) {
  ClusterCoordinator coordinator(strategy_, {.queue_capacity = 2, .depth = 1});
  auto numbers = coordinator.create_per_worker_dataset([] { return Dataset::range(1, 2).repeat(); });
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });
  std::atomic<int> scheduled = 0;
  std::jthread user([&] {
    for (; scheduled < 20; ++scheduled) coordinator.schedule(take, numbers);
  });

  EXPECT_TRUE(eventually([&] { return scheduled == 3; })) << "one runs and two wait";
  EXPECT_EQ(coordinator.metrics().queued_closures, 2);
  EXPECT_EQ(coordinator.metrics().inflight_closures, 1);
  EXPECT_EQ(scheduled, 3);
  gate_->open();
  user.join();
  coordinator.join();

  EXPECT_EQ(coordinator.metrics().snapshot().closure_execution.count, 20);
}

TEST(HeldBackWorkers, DelayNobodyElse) {
  const auto gate = std::make_shared<Gate>();
  InProcessCluster cluster({.workers = 3, .ps = 1, .worker = Gate::before_all(gate)});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  auto numbers = coordinator.create_per_worker_dataset([] { return Dataset::range(1, 2).repeat(); });
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });
  auto add = function([](at::Tensor x) { return x + 1; });
  for (int i = 0; i < 10; ++i) coordinator.schedule_on(2, add, torch::ones({})).fetch();
  std::vector<RemoteValue<at::Tensor>> held;
  for (int i = 0; i < 2; ++i) {
    held.push_back(coordinator.schedule_on(i, take, numbers));
    ASSERT_TRUE(eventually([&] { return gate->came() == i + 1; }));
  }

  EXPECT_EQ(coordinator.schedule(add, torch::ones({})).fetch(kPatience).item<float>(), 2);
  gate->open();
  EXPECT_EQ(coordinator.fetch(held).size(), 2u);
}

TEST_P(HeldBack, MetricsTellWhatWaitsAndWhatHasRun) {
  ClusterCoordinator coordinator(strategy_);
  auto numbers = coordinator.create_per_worker_dataset([] { return Dataset::range(1, 2).repeat(); });
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });
  MetricsSnapshot before = coordinator.metrics().snapshot();
  EXPECT_EQ(before.queued_closures, 0);
  EXPECT_EQ(before.inflight_closures, 0);

  std::vector<RemoteValue<at::Tensor>> values;
  for (int i = 0; i < 5; ++i) values.push_back(coordinator.schedule(take, numbers));
  EXPECT_TRUE(eventually([&] { return gate_->came() > 0; }));
  MetricsSnapshot meanwhile = coordinator.metrics().snapshot();
  gate_->open();
  coordinator.fetch(values);
  coordinator.join();

  EXPECT_GT(meanwhile.queued_closures, 0);
  EXPECT_GT(meanwhile.inflight_closures, 0);
  MetricsSnapshot after = coordinator.metrics().snapshot();
  EXPECT_EQ(after.queued_closures, 0);
  EXPECT_EQ(after.inflight_closures, 0);
  EXPECT_EQ(after.function_tracing.count, 1);
  EXPECT_EQ(after.closure_execution.count, 5);
  EXPECT_EQ(after.remote_value_fetch.count, 5);
  EXPECT_EQ(after.worker_failures, 0);
}

}  // namespace
}  // namespace muster
