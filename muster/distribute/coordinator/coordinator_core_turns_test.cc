// Who runs when, and with which arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "muster/base/log.h"
#include "muster/cluster/cluster_peers.h"
#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/cluster/server.h"
#include "muster/distribute/coordinator/coordinator_core.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/rpc/credentials/certificates.h"

namespace muster {
namespace {

using namespace ::muster::testing_support;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Turns : public ::testing::TestWithParam<Transport> {
 protected:
  ~Turns() override { gate_->open(); }
  ParameterServerStrategy strategy() const { return strategy_of(*cluster_, GetParam()); }
  void start(int workers) {
    cluster_.emplace(InProcessClusterOptions{
        .workers = workers, .ps = 1, .transport = GetParam(), .worker = Gate::before_all(gate_)});
  }

  LogCapture quiet_;
  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::optional<InProcessCluster> cluster_;
};

INSTANTIATE_TEST_SUITE_P(Transports, Turns, ::testing::Values(Transport::kGrpc, Transport::kLocal),
                         [](const auto& info) { return info.param == Transport::kGrpc ? "Grpc" : "Local"; });

// ---- One closure at a time
TEST_P(Turns, OfOneWorkerComeOneAfterTheOther) {
  constexpr int kClosures = 1'000;
  start(1);
  ParameterServerStrategy strategy = this->strategy();
  Variable v = strategy.make<Variable>(torch::zeros({}));
  ClusterCoordinator coordinator(strategy);
  auto count = function([&](at::Tensor x) {
    const at::Tensor old = v.value() + 0;
    v.assign(old + 1 + 0 * x.mm(x).sum());
  });

  for (int i = 0; i < kClosures; ++i) coordinator.schedule(count, torch::ones({16, 16}));
  coordinator.join();

  EXPECT_EQ(v.value().item<float>(), kClosures);
}

// Each writes at the parameter server and reads there for the next one, in one call. Which of them are at the worker in
// time is a matter of chance, of most it is known.
TEST(Closures, OfOneWorkerReadForEachOther) {
  constexpr int kClosures = 1'000;
  LogCapture quiet;
  const InProcessCluster cluster({.workers = 1, .ps = 1, .transport = Transport::kGrpc});
  ParameterServerStrategy strategy(cluster.resolver());
  Variable v = strategy.make<Variable>(torch::zeros({}));
  ClusterCoordinator coordinator(strategy);
  auto count = function([&](at::Tensor x) {
    const at::Tensor old = v.value() + 0;
    v.assign(old + x);
    return old;
  });
  ClusterPeers peers(cluster.spec(), {});
  const std::shared_ptr<Worker> ps = peers.worker("/job:ps/replica:0/task:0");
  coordinator.schedule(count, torch::ones({})).fetch();
  const uint64_t before = ps->status().requests;

  std::vector<RemoteValue<at::Tensor>> seen;
  for (int i = 0; i < kClosures; ++i) seen.push_back(coordinator.schedule(count, torch::ones({})));
  coordinator.join();

  EXPECT_LT(ps->status().requests - before, 1.7 * kClosures);
  // Two messages may change places on their way, but no closure reads what the one before it has not written yet.
  std::vector<float> read;
  for (auto& each : seen) read.push_back(each.fetch().item<float>());
  std::sort(read.begin(), read.end());
  for (int i = 0; i < kClosures; ++i) ASSERT_EQ(read[i], i + 1);
}

TEST_P(Turns, AreNotWaitedForIfTheUserSaysSo) {
  start(1);
  ParameterServerStrategy strategy = this->strategy();
  ClusterCoordinator coordinator(strategy, {.depth = 2, .overlap = true});
  auto numbers = coordinator.create_per_worker_dataset([] { return Dataset::range(1, 2).repeat(); });
  auto more = coordinator.create_per_worker_dataset([] { return Dataset::range(1, 2).repeat(); });
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });

  auto first = coordinator.schedule(take, numbers), second = coordinator.schedule(take, more);

  EXPECT_TRUE(eventually([&] { return gate_->came() == 2; })) << "both run";
  gate_->open();
  first.fetch();
  second.fetch();
}

TEST_P(Turns, AreNotWaitedForAtABusyWorkerWhileAnotherIsFree) {
  start(2);
  ParameterServerStrategy strategy = this->strategy();
  ClusterCoordinator coordinator(strategy);
  auto numbers = coordinator.create_per_worker_dataset([] { return Dataset::range(1, 2).repeat(); });
  auto take = function([](Iterator& it) { return it.next<1>()[0]; });
  auto add = function([](at::Tensor x) { return x + 1; });
  for (int worker : {0, 1}) {
    for (int i = 0; i < 5; ++i) coordinator.schedule_on(worker, add, torch::ones({})).fetch();  // both are quick
  }
  auto held = coordinator.schedule_on(0, take, numbers);
  ASSERT_TRUE(eventually([&] { return gate_->came() == 1; }));

  for (int i = 0; i < 20; ++i) EXPECT_EQ(coordinator.schedule(add, torch::ones({})).fetch(kPatience).item<float>(), 2);

  gate_->open();
  held.fetch();
}

// ---- What a closure is given
TEST_P(Turns, UseArgumentsAsTheyWereWhenTheyWereScheduled) {
  start(1);
  ParameterServerStrategy strategy = this->strategy();
  ClusterCoordinator coordinator(strategy);
  auto numbers = coordinator.create_per_worker_dataset([] { return Dataset::range(1, 2).repeat(); });
  auto hold = function([](Iterator& it) { return it.next<1>()[0]; });
  auto twice = function([](std::vector<at::Tensor> xs) { return xs[0].sum() * 2 + xs[1].sum(); });
  auto with_element = function([](Iterator& it, at::Tensor x) { return it.next<1>()[0] + x; });
  at::Tensor small = torch::ones({}), large = torch::ones({1'000'000}), column = torch::ones({10, 10});
  auto held = coordinator.schedule(hold, numbers);
  ASSERT_TRUE(eventually([&] { return gate_->came() == 1; }));

  auto of_small = coordinator.schedule(twice, std::vector<at::Tensor>{small, large});
  auto of_view = coordinator.schedule(twice, std::vector<at::Tensor>{column.t()[3], small});
  auto of_element = coordinator.schedule(with_element, numbers, small);
  for (at::Tensor& tensor : std::vector<at::Tensor>{small, large, column}) tensor.fill_(7);
  gate_->open();

  EXPECT_EQ(of_small.fetch().item<float>(), 1'000'002);
  EXPECT_EQ(of_view.fetch().item<float>(), 21);
  EXPECT_EQ(of_element.fetch().item<float>(), 2);
}

// ---- Programs that nobody needs
size_t programs_of(LocalWorker& worker) { return worker.status().programs; }

TEST_P(Turns, OfFunctionsThatAreGoneLeaveNothingAtTheTasks) {
  LocalWorkerOptions small;
  small.max_programs = 20;
  InProcessCluster cluster({.workers = 1, .ps = 1, .transport = GetParam(), .worker = small});
  ParameterServerStrategy strategy = strategy_of(cluster, GetParam());
  Variable v = strategy.make<Variable>(torch::zeros({}));
  ClusterCoordinator coordinator(strategy, {.tidy_every = std::chrono::milliseconds(10)});

  for (int i = 0; i < 100; ++i) {
    auto add = function([&](at::Tensor x) { return v.assign_add(x).value() + 0; });
    EXPECT_EQ(coordinator.schedule(add, torch::ones({})).fetch().item<float>(), i + 1);
  }

  EXPECT_TRUE(eventually([&] { return programs_of(cluster.worker({"worker", 0})) == 0; }));
  EXPECT_TRUE(eventually([&] { return programs_of(cluster.worker({"ps", 0})) == 0; }));
}

TEST_P(Turns, OfAFunctionThatIsGoneButScheduledAreRun) {
  start(1);
  ParameterServerStrategy strategy = this->strategy();
  ClusterCoordinator coordinator(strategy, {.tidy_every = std::chrono::milliseconds(1)});
  std::vector<RemoteValue<at::Tensor>> values;

  for (int i = 0; i < 50; ++i) {
    auto add = function([i](at::Tensor x) { return x + i; });
    values.push_back(coordinator.schedule(add, torch::ones({})));
  }

  for (int i = 0; i < 50; ++i) EXPECT_EQ(values[i].fetch().item<float>(), i + 1);
}

// ---- Closures that take long
TEST(LongClosures, AreWaitedForAsLongAsTheirWorkerIsAlive) {
  LogCapture quiet;
  const auto gate = std::make_shared<Gate>();
  constexpr auto kLimit = std::chrono::milliseconds(300);
  InProcessCluster cluster({.workers = 1, .ps = 1, .worker = Gate::before_all(gate)});
  ParameterServerStrategy strategy(
      cluster.resolver(), std::make_shared<ClusterPeers>(cluster.spec(), ChannelOptions{.call_timeout = kLimit}));
  Variable v = strategy.make<Variable>(torch::zeros({}));
  ClusterCoordinator coordinator(strategy);
  auto numbers = coordinator.create_per_worker_dataset([] { return Dataset::range(1, 2).repeat(); });
  auto add = function([&](Iterator& it) { v.assign_add(it.next<1>()[0].to(torch::kFloat)); });

  coordinator.schedule(add, numbers);
  ASSERT_TRUE(eventually([&] { return gate->came() == 1; }));
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(eventually([&] { return std::chrono::steady_clock::now() - begin > 2 * kLimit; }));
  gate->open();
  coordinator.join();

  EXPECT_EQ(v.value().item<float>(), 1);
  EXPECT_EQ(coordinator.metrics().snapshot().worker_failures, 0);
}

// ---- Workers that are not there
// Reaches only some tasks of a cluster, which is larger than what there is.
class FewOfMany : public Peers {
 public:
  FewOfMany(std::shared_ptr<Peers> behind, std::set<std::string> there)
      : behind_(std::move(behind)), there_(std::move(there)) {}
  std::shared_ptr<Worker> worker(const std::string& task) override {
    if (there_.contains(task)) return behind_->worker(task);
    throw Error(Status(StatusCode::kUnavailable, task + " is not there", task));
  }

 private:
  const std::shared_ptr<Peers> behind_;
  const std::set<std::string> there_;
};

// The workers of this process have some, too.
int threads_of_coordinators() {
  int count = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::ifstream(thread.path() / "comm") >> name;
    count += name.starts_with("coordinator") ? 1 : 0;
  }
  return count;
}

TEST(MissingWorkers, TakeNoThread) {
  constexpr int kMissing = 600;
  LogCapture quiet;
  InProcessCluster cluster({.workers = 1, .ps = 1, .transport = Transport::kLocal});
  std::map<std::string, std::map<int, std::string>> addresses;
  for (int i = 0; i <= kMissing; ++i) addresses["worker"][i] = str_cat("machine-", i, ":1");
  addresses["ps"][0] = "machine:2";
  auto peers = std::make_shared<FewOfMany>(
      cluster.peers(), std::set<std::string>{"/job:worker/replica:0/task:0", "/job:ps/replica:0/task:0"});
  ParameterServerStrategy strategy(SimpleClusterResolver(ClusterSpec::sparse(addresses), {.rpc_layer = "grpc"}),
                                   std::move(peers));
  Variable v = strategy.make<Variable>(torch::zeros({}));

  ClusterCoordinator coordinator(strategy);
  auto add = function([&](at::Tensor x) { v.assign_add(x); });
  for (int i = 0; i < 2 * kMissing; ++i) coordinator.schedule(add, torch::ones({}));
  ASSERT_TRUE(coordinator.join(kPatience));

  EXPECT_EQ(v.value().item<float>(), 2 * kMissing);
  EXPECT_LT(threads_of_coordinators(), 20);
  EXPECT_EQ(coordinator.workers_up(), 1u);
}

TEST(MissingWorkers, AreWaitedForAndNotLost) {
  LogCapture log;
  InProcessCluster cluster({.workers = 2, .ps = 1});
  const TaskId missing{"worker", 1};
  cluster.stop(missing);
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy);
  auto add = function([](at::Tensor x) { return x + 1; });

  for (int i = 0; i < 10; ++i) coordinator.schedule(add, torch::ones({}));
  coordinator.join();
  const std::string words = str_cat("waiting for worker 1 at ", cluster.spec().task_address(missing));
  ASSERT_TRUE(eventually([&] { return log.contains(words); }));
  cluster.start(missing);
  EXPECT_EQ(coordinator.schedule_on(1, add, torch::ones({})).fetch().item<float>(), 2);

  EXPECT_EQ(coordinator.metrics().snapshot().worker_failures, 0);
  int told = 0;
  for (const LogLine& line : log.lines()) {
    EXPECT_THAT(line.text, AllOf(Not(HasSubstr("is lost")), Not(HasSubstr("refused"))));
    told += line.text == words ? 1 : 0;
  }
  EXPECT_EQ(told, 1);
}

TEST(MissingWorkers, AreNamedAgainWithTheReason) {
  LogCapture log;
  InProcessCluster cluster({.workers = 2, .ps = 1});
  // Somebody has mistaken one address for the other.
  std::map<std::string, std::map<int, std::string>> addresses;
  addresses["worker"][0] = cluster.spec().task_address({"worker", 1});
  addresses["worker"][1] = cluster.spec().task_address({"worker", 0});
  addresses["ps"][0] = cluster.spec().task_address({"ps", 0});
  ParameterServerStrategy strategy(SimpleClusterResolver(ClusterSpec::sparse(addresses), {.rpc_layer = "grpc"}));
  ClusterCoordinator coordinator(strategy, {.worker_recovery_limit = std::chrono::seconds(36)});
  EXPECT_TRUE(eventually([&] {
    return log.contains("is missing for 0 s, and given up after 36 s") &&
           log.contains("here is /job:worker/replica:0/task:1, not /job:worker/replica:0/task:0");
  }));
}

TEST(MissingWorkers, JoinAQueueOfTwoOneAfterTheOther) {
  LogCapture quiet;
  InProcessCluster cluster({.workers = 3, .ps = 1});
  for (int late : {1, 2}) cluster.stop({"worker", late});
  ParameterServerStrategy strategy(cluster.resolver());
  Variable v = strategy.make<Variable>(torch::zeros({}));
  ClusterCoordinator coordinator(strategy, {.queue_capacity = 2});
  auto add = function([&](at::Tensor x) { v.assign_add(x); });

  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int k = 0; k < 50; ++k) coordinator.schedule(add, torch::ones({}));
      });
    }
    for (int late : {1, 2}) {
      EXPECT_TRUE(eventually([&] { return v.value().item<float>() >= 20.0F * late; }));
      cluster.start({"worker", late});
    }
  }
  coordinator.join();

  EXPECT_EQ(v.value().item<float>(), 200);
  EXPECT_TRUE(eventually([&] { return coordinator.workers_up() == 3; }));
  EXPECT_EQ(CoordinatorOptions{}.queue_capacity, 256u * 1024);
}

TEST(MissingWorkers, ThatWantOtherCredentialsAreGivenUpAtOnce) {
  const Identity authority = make_authority("test authority", std::chrono::days(30));
  const ClusterSpec cluster({{"worker", {"127.0.0.1:0"}}, {"ps", {"127.0.0.1:0"}}});
  const TaskId task{"worker", 0};
  const Identity made = make_certificate(authority, {.name = "worker-0", .use = {.task = task.to_string()}});
  Server worker({.cluster = cluster,
                 .task = task,
                 .credentials = {.tls = Tls{authority.certificate, made.certificate, made.key}}});
  Server ps({.cluster = cluster, .task = {"ps", 0}});
  ParameterServerStrategy strategy(
      SimpleClusterResolver(ClusterSpec({{"worker", {worker.address()}}, {"ps", {ps.address()}}})));
  ClusterCoordinator coordinator(strategy);
  auto add = function([](at::Tensor x) { return x + 1; });

  coordinator.schedule(add, torch::ones({}));
  const Status status = caught([&] { coordinator.join(); });

  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("/job:worker"), HasSubstr("this client has no credentials")));
}

// ---- Variables in the wrong place
TEST(ScheduledFunctions, SayWhichVariableTheWorkersDoNotHave) {
  InProcessCluster cluster({.workers = 1, .ps = 1, .transport = Transport::kLocal});
  ParameterServerStrategy strategy = strategy_of(cluster, Transport::kLocal),
                          other = strategy_of(cluster, Transport::kLocal);
  Variable outside(torch::zeros({}), {.name = "outside"}), elsewhere = other.make<Variable>(torch::zeros({}));
  ClusterCoordinator coordinator(strategy);
  auto use_outside = function([&] { return outside.value() + 1; });
  auto use_elsewhere = function([&] { return elsewhere.value() + 1; });

  const Status status = caught([&] { coordinator.schedule(use_outside); });
  const Status of_other = caught([&] { coordinator.schedule(use_elsewhere); });

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("\"outside"), HasSubstr("was made outside of the strategy's scope"),
                                      HasSubstr("strategy.scope()")));
  EXPECT_EQ(of_other.code(), StatusCode::kFailedPrecondition) << of_other;
  EXPECT_THAT(of_other.message(), HasSubstr("belongs to another strategy"));
}

TEST(ScheduledFunctions, ThatWriteToAnArgumentSayThatTheCallersStaysAsItIs) {
  InProcessCluster cluster({.workers = 2, .ps = 1, .transport = Transport::kGrpc});
  ParameterServerStrategy strategy = strategy_of(cluster, Transport::kGrpc);
  ClusterCoordinator coordinator(strategy);
  auto scale = function([](at::Tensor x, at::Tensor y) { return x + y.mul_(2); }, {.name = "scale"});
  at::Tensor y = torch::ones({});
  LogCapture log;

  for (int worker : {0, 1}) {
    EXPECT_EQ(coordinator.schedule_on(worker, scale, torch::ones({}), y).fetch().item<float>(), 3);
  }
  EXPECT_EQ(y.item<float>(), 1);
  const auto lines = log.lines();
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const LogLine& line) {
                            return line.text.starts_with("function \"scale\" writes to its argument 1");
                          }),
            1);
}

TEST(ScheduledFunctions, ThatAreCalledInsteadSayWhereTheirVariablesLive) {
  InProcessCluster cluster({.workers = 1, .ps = 1, .transport = Transport::kLocal});
  ParameterServerStrategy strategy = strategy_of(cluster, Transport::kLocal);
  Variable v = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "weight"});
  auto use = function([&] { return v.value() + 1; });

  const Status called = caught([&] { use(); });
  const Status of_session = caught([&] { cluster.session({"ps", 0})->run(use); });

  for (const Status& status : {called, of_session}) {
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("\"weight\", which a strategy has made on /job:ps/replica:0/task:0"),
                                        HasSubstr("ClusterCoordinator::schedule")));
  }
}

TEST(ScheduledFunctions, ThatAskForADeviceOfOneWorkerRunThereOrNowhere) {
  InProcessCluster cluster({.workers = 2, .ps = 1, .transport = Transport::kLocal});
  ParameterServerStrategy strategy = strategy_of(cluster, Transport::kLocal);
  ClusterCoordinator coordinator(strategy);
  auto of_second = function([](at::Tensor x) {
    DeviceScope scope("/job:worker/task:1");
    return x + 1;
  });

  EXPECT_EQ(coordinator.schedule_on(1, of_second, torch::ones({})).fetch().item<float>(), 2);
  for (int i = 0; i < 4; ++i) {
    EXPECT_THAT(caught([&] { coordinator.schedule(of_second, torch::ones({})); }).message(),
                AllOf(HasSubstr("a device of worker 1, and any worker may run it"), HasSubstr("schedule_on(1, ...)")));
  }
  EXPECT_THAT(caught([&] { coordinator.schedule_on(0, of_second, torch::ones({})); }).message(),
              HasSubstr("was to run on worker 0"));
}

TEST(ScheduledFunctions, ThatAskForADeviceThatIsNotThereAreToldAllThatAre) {
  InProcessCluster cluster({.workers = 1, .ps = 2, .transport = Transport::kLocal});
  ParameterServerStrategy strategy = strategy_of(cluster, Transport::kLocal);
  ClusterCoordinator coordinator(strategy);
  auto wrong = function([](at::Tensor x) {
    DeviceScope scope("/job:sp");
    return x + 1;
  });

  coordinator.schedule(wrong, torch::ones({}));
  const Status status = caught([&] { coordinator.join(); });
  const Status at_once = caught([&] { strategy.run(wrong, torch::ones({})); });

  for (const Status& each : {status, at_once}) {
    EXPECT_EQ(each.code(), StatusCode::kInvalidArgument) << each;
    EXPECT_THAT(each.message(), AllOf(HasSubstr("/job:sp"), HasSubstr("/job:ps/replica:0/task:1")));
  }
}

}  // namespace
}  // namespace muster
