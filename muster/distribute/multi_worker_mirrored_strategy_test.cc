#include "muster/distribute/multi_worker_mirrored_strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <latch>
#include <limits>
#include <thread>

#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/cluster/resolvers/tf_config_cluster_resolver.h"
#include "muster/cluster/roles.h"
#include "muster/cluster/test_environment.h"
#include "muster/collective/nccl_ranks.h"
#include "muster/collective/task_group.h"
#include "muster/distribute/coordinator/test_coordinator.h"
#include "muster/distribute/replica_ops.h"
#include "muster/runtime/executor/profile.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/rows.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

CollectiveCall sum_for(const std::string& purpose) { return {.purpose = purpose}; }
CollectiveCall gather_for(const std::string& purpose) {
  return {.kind = CollectiveKind::kAllGather, .purpose = purpose};
}
CollectiveCall first_for(const std::string& purpose) {
  return {.kind = CollectiveKind::kBroadcast, .purpose = purpose};
}
const CollectiveCall kSum = sum_for("reduce(sum)");

std::string free_address() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(fd);
  return str_cat("127.0.0.1:", ntohs(address.sin_port));
}

// This process is the first worker. A thread of it stands for the second: it has a server of its own, and makes the
// calls that the program of the first one makes.
class TwoWorkers : public testing::Test {
 protected:
  using Second = std::function<void(TaskGroup&)>;

  TwoWorkers() : TwoWorkers({{"worker", {free_address(), free_address()}}}, {"worker", 0}, {"worker", 1}) {}
  // `first`: what this process is.
  TwoWorkers(ClusterSpec spec, TaskId first, TaskId second)
      : spec_(std::move(spec)), first_(std::move(first)), second_(std::move(second)) {}

  TaskGroupOptions second_of_two() const {
    TaskGroupOptions options{.rank = id_in_cluster(spec_, second_),
                             .sockets = GroupSockets::kOfThisMachine,
                             .meet_gpus = meet_by_nccl({.device = at::Device(at::kCPU)})};
    for (const TaskId& task : spec_.all_tasks()) {
      options.tasks.push_back(task.to_string());
      options.addresses.push_back(spec_.task_address(task));
    }
    return options;
  }

  void train(const std::function<void(const MultiWorkerMirroredStrategy&)>& first, const Second& second,
             MultiWorkerOptions options = {}) {
    const std::jthread other([&] {
      Server server({.cluster = spec_, .task = second_});
      TaskGroup group(second_of_two(), server.worker().rendezvous(), server.worker().incarnation(), server.peers());
      const auto devices = static_cast<int64_t>(std::max<size_t>(options.devices.size(), 1));
      group.run(gather_for("the number of devices"), {torch::full({1}, devices)});
      second(group);
    });
    const SimpleClusterResolver resolver(spec_, {.task_type = first_.job, .task_index = first_.index});
    first(MultiWorkerMirroredStrategy(resolver, options));
  }

  const ClusterSpec spec_;
  const TaskId first_, second_;
};

class ChiefAndWorker : public TwoWorkers {
 protected:
  ChiefAndWorker(TaskId first, TaskId second)
      : TwoWorkers({{"chief", {free_address()}}, {"worker", {free_address()}}}, std::move(first), std::move(second)) {}
};
class ChiefOfAWorker : public ChiefAndWorker {
 protected:
  ChiefOfAWorker() : ChiefAndWorker({"chief", 0}, {"worker", 0}) {}
};
class WorkerOfAChief : public ChiefAndWorker {
 protected:
  WorkerOfAChief() : ChiefAndWorker({"worker", 0}, {"chief", 0}) {}
};

TEST_F(ChiefOfAWorker, IsTheFirstAndItsValuesAreThoseOfAll) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        EXPECT_EQ(strategy.worker(), 0);
        EXPECT_TRUE(strategy.is_chief());
        EXPECT_TRUE(strategy.saved()->writes());
        EXPECT_EQ(strategy.make<Variable>(torch::ones({}), VariableOptions{.name = "v"}).value().item<float>(), 1);
      },
      [](TaskGroup& group) {
        EXPECT_EQ(group.run(first_for("variable \"v\""), {torch::zeros({})})[0].item<float>(), 1);
      });
}

TEST_F(WorkerOfAChief, IsTheSecondAndWritesNothing) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        EXPECT_EQ(strategy.worker(), 1);
        EXPECT_FALSE(strategy.is_chief());
        EXPECT_FALSE(strategy.saved()->writes());
        EXPECT_EQ(strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "v"}).value().item<float>(), 1);
      },
      [](TaskGroup& group) { group.run(first_for("variable \"v\""), {torch::ones({})}); });
}

TEST_F(TwoWorkers, CountTheReplicasOfAll) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        EXPECT_EQ(strategy.num_replicas_in_sync(), 4);
        EXPECT_EQ(strategy.worker(), 0);
        EXPECT_TRUE(strategy.is_chief());
      },
      [](TaskGroup&) {}, {.devices = {"/device:CPU:0", "/device:CPU:1"}});
}

TEST_F(TwoWorkers, BeginWithTheValuesOfTheFirst) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        const auto v = strategy.make<Variable>(torch::tensor({1.0F, 2.0F}), VariableOptions{.name = "v"});
        EXPECT_TRUE(v.value().equal(torch::tensor({1.0F, 2.0F})));
        for (size_t dimensions = 1; dimensions <= 20; ++dimensions) {
          const std::vector<int64_t> sizes(dimensions, 1);
          const auto ones = strategy.make<Variable>(torch::ones(sizes), VariableOptions{.name = "ones"});
          EXPECT_TRUE(ones.value().equal(torch::ones(sizes)));
        }
      },
      [](TaskGroup& group) {
        EXPECT_TRUE(group.run(first_for("variable \"v\""), {torch::zeros({2})})[0].equal(torch::tensor({1.0F, 2.0F})));
        for (size_t dimensions = 1; dimensions <= 20; ++dimensions) {
          const std::vector<int64_t> sizes(dimensions, 1);
          EXPECT_TRUE(group.run(first_for("variable \"ones\""), {torch::zeros(sizes)})[0].equal(torch::ones(sizes)));
        }
      });
}

TEST_F(TwoWorkers, ReduceAndGatherOverAllReplicas) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        auto of_replica = function([](at::Tensor x) { return x * (replica_id() + 1); });
        const auto values = strategy.run(of_replica, torch::ones({2}));
        ASSERT_EQ(values.values.size(), 2u);

        EXPECT_TRUE(strategy.reduce(ReduceOp::kSum, values).equal(torch::full({2}, 10.0F)));
        EXPECT_TRUE(strategy.reduce(ReduceOp::kMean, values).equal(torch::full({2}, 2.5F)));
        EXPECT_EQ(strategy.reduce(ReduceOp::kMean, values, 0).item<float>(), 22.0F / 8);
        EXPECT_TRUE(strategy.gather(values).equal(torch::tensor({1.0F, 1.0F, 2.0F, 2.0F, 3.0F})));
        auto inside =
            function([&](at::Tensor x) { return strategy.reduce(ReduceOp::kSum, strategy.run(of_replica, x)); });
        EXPECT_TRUE(inside(torch::ones({2})).equal(torch::full({2}, 10.0F)));
      },
      [](TaskGroup& group) {
        group.run(kSum, {torch::full({2}, 7.0F)});
        group.run(sum_for("reduce(mean)"), {torch::full({2}, 7.0F)});
        group.run(sum_for("reduce(mean)"), {torch::full({}, 16.0F)});  // of four
        group.run(sum_for("the number of rows of reduce(mean)"), {torch::full({}, 4)});
        group.run(gather_for("gather"), {torch::tensor({3.0F})});  // it need not have as many
        group.run(kSum, {torch::full({2}, 7.0F)});
      },
      {.devices = {"/device:CPU:0", "/device:CPU:1"}});
}

TEST_F(TwoWorkers, FindTheLeastAndTheMostOfThoseThatHaveRows) {
  const auto end_of = [](Reduction reduction, const std::string& purpose) {
    return CollectiveCall{.reduction = reduction, .purpose = purpose};
  };
  const auto flag = [](int64_t value) { return torch::full({}, value, torch::kLong); };
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        const PerReplica<at::Tensor> empty{{torch::empty({0, 2})}}, flags{{torch::empty({0}, torch::kBool)}};

        EXPECT_TRUE(strategy.reduce(ReduceOp::kMin, empty, 0).equal(torch::tensor({1.0F, 2.0F})));
        EXPECT_TRUE(strategy.reduce(ReduceOp::kMax, flags, 0).equal(torch::tensor(false)));
        EXPECT_THAT(caught([&] { (void)strategy.reduce(ReduceOp::kMin, empty, 0); }).message(),
                    HasSubstr("reduce(min) along axis 0: no replica has rows"));
        EXPECT_THAT(caught([&] { (void)strategy.reduce(ReduceOp::kMax, empty, 0); }).message(),
                    HasSubstr("reduce(max) along axis 0: no replica has rows"));
      },
      [&](TaskGroup& group) {
        const at::Tensor most = torch::full({2}, std::numeric_limits<float>::infinity());
        group.run(end_of(Reduction::kMin, "reduce(min)"), {torch::tensor({1.0F, 2.0F}), flag(0)});
        group.run(end_of(Reduction::kMax, "reduce(max)"), {torch::tensor(false), flag(1)});
        EXPECT_TRUE(group.run(end_of(Reduction::kMin, "reduce(min)"), {most, flag(1)})[0].equal(most));
        EXPECT_TRUE(group.run(end_of(Reduction::kMax, "reduce(max)"), {-most, flag(0)})[0].equal(-most));
      });
}

TEST_F(TwoWorkers, MakeOneWriteOfWhatAllReplicasWrite) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        auto made = [&](const std::string& name, Aggregation aggregation) {
          auto scope = strategy.scope();
          return Variable(torch::zeros({}), VariableOptions{.name = name, .aggregation = aggregation});
        };
        Variable sum = made("sum", Aggregation::kSum), mean = made("mean", Aggregation::kMean),
                 first = made("first", Aggregation::kOnlyFirstReplica);
        auto write = function([&](at::Tensor x) {
          sum.assign_add(x);
          mean.assign_add(x);
          first.assign_add(x);
        });
        strategy.run(write, torch::full({}, 1.0F));

        EXPECT_EQ(sum.value().item<float>(), 4);
        EXPECT_EQ(mean.value().item<float>(), 2);
        EXPECT_EQ(first.value().item<float>(), 1);
      },
      [](TaskGroup& group) {
        const at::Tensor zero = torch::zeros({}), three = torch::full({}, 3.0F);
        for (const char* name : {"sum", "mean", "first"}) {
          group.run(first_for(str_cat("variable \"", name, "\"")), {zero});
        }
        group.run(sum_for("a write to variable \"sum\""), {three});
        group.run(sum_for("a write to variable \"mean\""), {three});
        EXPECT_EQ(group.run(first_for("a write to variable \"first\""), {three})[0].item<float>(), 1);
      });
}

TEST_F(TwoWorkers, PutTogetherWhatReplicasHaveWhenItIsRead) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        auto scope = strategy.scope();
        Variable seen(torch::full({}, 5.0F),
                      {.name = "seen", .aggregation = Aggregation::kSum, .synchronization = Synchronization::kOnRead});
        auto count = function([&](at::Tensor x) { seen.assign_add(x); });
        strategy.run(count, torch::full({}, 1.0F));

        EXPECT_EQ(seen.copies()[0].value().item<float>(), 6);
        EXPECT_EQ(seen.value().item<float>(), 9);
      },
      [](TaskGroup& group) {
        group.run(first_for("variable \"seen\""), {torch::zeros({})});
        group.run(sum_for("the value of variable \"seen\", which all workers read together"), {torch::full({}, 3.0F)});
      });
}

TEST_F(TwoWorkers, ComputeTogetherInLoops) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        auto same = function([](at::Tensor x) { return x; });
        auto loop = function([&](at::Tensor x) {
          return repeat(
              3,
              [&](const at::Tensor&, const at::Tensor& now) {
                return strategy.reduce(ReduceOp::kSum, strategy.run(same, now));
              },
              x);
        });
        EXPECT_EQ(loop(torch::full({}, 1.0F)).item<float>(), 31);
      },
      [](TaskGroup& group) {
        for (int i = 0; i < 3; ++i) group.run(kSum, {torch::full({}, 10.0F)});
      });
}

TEST_F(TwoWorkers, GoOnWhileOthersAreWaitedFor) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        auto same = function([](at::Tensor x) { return x; });
        // What is written to after its sum was begun is summed as it was, and so is what comes in the wrong order.
        auto both = function([&](at::Tensor x) {
          at::Tensor own = x.clone();
          at::Tensor first = strategy.reduce(ReduceOp::kSum, strategy.run(same, own));
          own.mul_(100);
          at::Tensor second = strategy.reduce(ReduceOp::kSum, strategy.run(same, x * 2));
          return std::vector<at::Tensor>{second, first, own};
        });
        for (int i = 0; i < 20; ++i) {
          const auto results = both(torch::full({3}, 1.0F));
          EXPECT_EQ(results[0].max().item<float>(), 22);
          EXPECT_EQ(results[1].max().item<float>(), 11);
          EXPECT_EQ(results[2].max().item<float>(), 100);
        }
      },
      [](TaskGroup& group) {
        for (int i = 0; i < 20; ++i) {
          group.run(kSum, {torch::full({3}, 10.0F)});
          group.run(kSum, {torch::full({3}, 20.0F)});
        }
      });
}

TEST_F(TwoWorkers, ShowInAProfileHowLongTheySumAndWhatRunsMeanwhile) {
  Profile profile;
  const auto event = [&](const std::string& op) {
    std::optional<Profile::Event> found;
    for (const Profile::Event& each : profile.events()) {
      if (each.op == op) found = each;
    }
    return found;
  };
  train(
      [&](const MultiWorkerMirroredStrategy& strategy) {
        auto same = function([](at::Tensor x) { return x; });
        auto step = function([&](at::Tensor x) {
          const at::Tensor sum = strategy.reduce(ReduceOp::kSum, strategy.run(same, x));
          return std::vector<at::Tensor>{sum, x.sin()};
        });
        step.run({.profile = &profile}, torch::ones({3}));
      },
      [&](TaskGroup& group) {
        while (!event("aten::sin")) std::this_thread::yield();  // so the sum does not end before
        group.run(kSum, {torch::ones({3})});
      });
  const auto sum = event(kSum.to_string()), op = event("aten::sin");
  ASSERT_TRUE(sum && op);
  EXPECT_EQ(sum->device, Profile::kOtherTasks);
  EXPECT_LE(sum->begin, op->begin);
  EXPECT_GE(sum->end, op->end);
}

TEST_F(TwoWorkers, FailWhenAnotherOneFailsAndSayWhy) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        auto same = function([](at::Tensor x) { return x; });
        auto sum = function([&](at::Tensor x) { return strategy.reduce(ReduceOp::kSum, strategy.run(same, x)); });
        EXPECT_EQ(sum(torch::ones({})).item<float>(), 3);

        EXPECT_THAT(caught([&] { sum(torch::ones({})); }).message(),
                    AllOf(HasSubstr("rank 1 (/job:worker/replica:0/task:1"), HasSubstr("float32[5]")));
        EXPECT_THAT(caught([&] { sum(torch::ones({})); }).message(), HasSubstr("the group has failed before"));
      },
      [](TaskGroup& group) {
        group.run(kSum, {torch::full({}, 2.0F)});
        EXPECT_THROW(group.run(kSum, {torch::ones({5})}), Error);
      });
}

TEST_F(TwoWorkers, FailTogetherWhenAStepFailsBesideItsSums) {
  std::latch told(1);
  train(
      [&](const MultiWorkerMirroredStrategy& strategy) {
        auto same = function([](at::Tensor x) { return x; });
        auto step = function([&](at::Tensor x, at::Tensor index) {
          return strategy.reduce(ReduceOp::kSum, strategy.run(same, x)).index_select(0, index);
        });
        step(torch::ones({2}), torch::tensor({1}));
        EXPECT_THAT(caught([&] { step(torch::ones({2}), torch::tensor({7})); }).message(), HasSubstr("index_select"));
        told.wait();
      },
      [&](TaskGroup& group) {
        for (int i = 0; i < 2; ++i) group.run(kSum, {torch::ones({2})});
        EXPECT_THAT(caught([&] { group.run(kSum, {torch::ones({2})}); }).message(),
                    AllOf(HasSubstr("rank 0 (/job:worker/replica:0/task:0"), HasSubstr("index_select")));
        told.count_down();
      });
}

TEST_F(TwoWorkers, SayAtWhichOfThemAnErrorBegan) {
  const std::string own_name = "/job:localhost/replica:0/task:0";  // by which each process calls itself
  auto chosen = function([](at::Tensor x, at::Tensor index) { return x.index_select(0, index); });
  train(
      [&](const MultiWorkerMirroredStrategy& strategy) {
        auto same = function([](at::Tensor x) { return x; });
        auto step = function([&](at::Tensor x) { return strategy.reduce(ReduceOp::kSum, strategy.run(same, x)); });
        (void)chosen(torch::ones({2}), torch::tensor({1}));

        const Status of_other = caught([&] { step(torch::ones({2})); });
        const Status of_this = caught([&] { chosen(torch::ones({2}), torch::tensor({7})); });

        EXPECT_EQ(of_other.task(), "/job:worker/replica:0/task:1") << of_other;
        EXPECT_EQ(of_this.task(), "/job:worker/replica:0/task:0") << of_this;
      },
      [&](TaskGroup& group) { group.fail(Status(StatusCode::kInternal, "an op has failed", own_name)); });

  EXPECT_EQ(caught([&] { chosen(torch::ones({2}), torch::tensor({7})); }).task(), own_name) << "it is alone again";
}

TEST_F(TwoWorkers, SayThatTheirListsHaveDifferentLengths) {
  ClusterSpec longer{
      {"worker", {spec_.task_address({"worker", 0}), spec_.task_address({"worker", 1}), free_address()}}};
  const auto join = [](const ClusterSpec& spec, int index) {
    return caught([&] {
      // They are sure of it after a twentieth of that.
      MultiWorkerMirroredStrategy(SimpleClusterResolver(spec, {.task_type = "worker", .task_index = index}),
                                  {.start_timeout = std::chrono::seconds(10)});
    });
  };
  Status of_second;
  std::jthread second([&] { of_second = join(longer, 1); });

  const Status of_first = join(spec_, 0);
  second.join();

  EXPECT_EQ(of_first.code(), StatusCode::kFailedPrecondition) << of_first;
  EXPECT_THAT(of_first.message(), AllOf(HasSubstr("rank 0 (/job:worker/replica:0/task:0 at "),
                                        HasSubstr("is one of 2 workers by its own list, rank 1 "),
                                        HasSubstr("is one of 3; start all of them with the same list of workers")));
  EXPECT_EQ(of_second.code(), StatusCode::kFailedPrecondition) << of_second;
  EXPECT_THAT(of_second.message(),
              AllOf(HasSubstr("is one of 3 workers by its own list, rank 0 "), HasSubstr("of 2;")));
}

TEST_F(TwoWorkers, RefuseWhatOneOfThemWouldWriteToACopyForItself) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        auto v = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "v"});
        auto own = function([&](at::Tensor x) { v.value().data().add_(x); });
        auto of_all = function([&](at::Tensor x) { v.value().data().add_(all_reduce(ReduceOp::kSum, x)); });

        EXPECT_THAT(caught([&] { strategy.run(own, torch::ones({})); }).message(),
                    AllOf(HasSubstr("variable \"v\" in replica 0 of 2"), HasSubstr("drift apart")));
        strategy.run(of_all, torch::ones({}));
        EXPECT_EQ(v.value().item<float>(), 3);
      },
      [](TaskGroup& group) {
        group.run(first_for("variable \"v\""), {torch::zeros({})});
        group.run(sum_for("all_reduce(sum)"), {torch::full({}, 2.0F)});
      });
}

TEST_F(TwoWorkers, RefuseToWriteToCopiesByWhatEachOfThemHasMadeForItself) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        auto v = strategy.make<Variable>(torch::zeros({}), VariableOptions{.name = "v"});
        auto rate = strategy.make<Variable>(torch::full({}, 2.0F), VariableOptions{.name = "rate", .trainable = false});
        Variable own(torch::full({}, 5.0F), {.name = "own", .trainable = false});
        auto by_own = function([&](at::Tensor) { v.value().data().add_(own.value()); });
        auto by_own_in_step = function([&](at::Tensor) { v.value().data().add_(rate.value()); });

        EXPECT_THAT(caught([&] { strategy.run(by_own, torch::ones({})); }).message(),
                    AllOf(HasSubstr("variable \"v\" in replica 0 of 2"), HasSubstr("drift apart")));
        strategy.run(by_own_in_step, torch::ones({}));
        EXPECT_EQ(v.value().item<float>(), 2);
      },
      [](TaskGroup& group) {
        group.run(first_for("variable \"v\""), {torch::zeros({})});
        group.run(first_for("variable \"rate\""), {torch::zeros({})});
      });
}

TEST_F(TwoWorkers, RefuseToTrainWhatEachOfThemHasMadeForItself) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        Variable own(torch::rand({2}), {.name = "own", .aggregation = Aggregation::kMean});
        auto step = function([&](const torch::Tensor& x) { own.assign_add(x); });

        const Status status = caught([&] { strategy.run(step, torch::ones({2})); });

        EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
        EXPECT_THAT(status.message(), AllOf(HasSubstr("\"own\""), HasSubstr("made outside of their strategy")));
      },
      [](TaskGroup&) {});
}

TEST_F(TwoWorkers, NeedAsManyDevices) {
  const std::jthread other([&] {
    Server server({.cluster = spec_, .task = {"worker", 1}});
    TaskGroup group(second_of_two(), server.worker().rendezvous(), server.worker().incarnation(), server.peers());
    group.run(gather_for("the number of devices"), {torch::full({1}, 2)});
  });

  EXPECT_THAT(caught([&] {
                MultiWorkerMirroredStrategy(SimpleClusterResolver(spec_, {.task_type = "worker", .task_index = 0}));
              }).message(),
              MatchesRegex(".*MultiWorkerMirroredStrategy: rank 1 .* at 127.*, incarnation [0-9]+. has 2 devices, "
                           "this one, rank 0 .* at 127.*, incarnation [0-9]+., has 1; all need as many"));
}

TEST_F(TwoWorkers, NameWhoHasRestoredAnotherStep) {
  train(
      [](const MultiWorkerMirroredStrategy& strategy) {
        strategy.saved()->agree_on_step(5);
        EXPECT_THAT(caught([&] { strategy.saved()->agree_on_step(5); }).message(),
                    MatchesRegex("rank 0 .* at 127.*, incarnation [0-9]+. has restored step 5, "
                                 "rank 1 .* at 127.*, incarnation [0-9]+. has restored -1 .*"));
      },
      [](TaskGroup& group) {
        for (const int64_t step : {5, -1}) {
          group.run(gather_for("the step that was restored"), {torch::full({1}, step)});
        }
      });
}

TEST_F(TwoWorkers, DrawDifferentRandomNumbers) {
  auto draw = function([](at::Tensor x) { return torch::rand_like(x); });
  const at::Tensor x = torch::zeros({8});
  RunOptions first{.step = 5};
  const at::Tensor alone = draw.run(first, x);

  local_worker().set_replica(1);
  const at::Tensor other = draw.run(first, x);
  local_worker().set_replica(0);

  EXPECT_FALSE(alone.equal(other));
  EXPECT_TRUE(alone.equal(draw.run(first, x)));
}

TEST_F(TwoWorkers, RefuseProgramsWhoseStrategyIsGone) {
  auto same = function([](at::Tensor x) { return x; });
  std::optional<Strategy> kept;
  auto sum = function([&](at::Tensor x) { return kept->reduce(ReduceOp::kSum, kept->run(same, x)); });
  train(
      [&](const MultiWorkerMirroredStrategy& strategy) {
        kept = strategy;
        sum(torch::ones({}));
        kept.reset();
      },
      [](TaskGroup& group) { group.run(kSum, {torch::ones({})}); });

  EXPECT_THAT(caught([&] { sum(torch::ones({})); }).message(), HasSubstr("its strategy is gone"));
}

TEST(MultiWorkerMirroredStrategy, IsMirroredIfThereIsOneWorker) {
  const ClusterSpec spec{{"worker", {free_address()}}};
  const MultiWorkerMirroredStrategy strategy(SimpleClusterResolver(spec, {.task_type = "worker", .task_index = 0}));
  auto same = function([](at::Tensor x) { return x; });

  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
  EXPECT_EQ(strategy.reduce(ReduceOp::kSum, strategy.run(same, torch::ones({}))).item<float>(), 1);
}

TEST(MultiWorkerMirroredStrategy, CanBeDeclaredWithWhatTheEnvironmentSays) {
  const testing_support::ScopedVariable config("TF_CONFIG", R"({"cluster": {"worker": ["localhost:2222"]},
                                                  "task": {"type": "worker", "index": 0}})");

  MultiWorkerMirroredStrategy strategy(TfConfigClusterResolver());

  EXPECT_EQ(strategy.num_replicas_in_sync(), 1);
}

TEST(MultiWorkerMirroredStrategy, WantsToKnowWhichWorkerItIs) {
  const ClusterSpec spec{{"worker", {"127.0.0.1:1", "127.0.0.1:2"}}};

  EXPECT_THAT(caught([&] { MultiWorkerMirroredStrategy{SimpleClusterResolver(spec)}; }).message(),
              HasSubstr("nobody says which task this process is"));
}

TEST(MultiWorkerMirroredStrategy, SaysWhoIsThereInThePlaceOfAWorker) {
  const std::string first = free_address(), second = free_address();
  const Server other({.cluster = {{"worker", {second, first}}}, .task = {"worker", 0}});  // a list in another order

  const Status status = caught([&] {
    MultiWorkerMirroredStrategy(
        SimpleClusterResolver({{"worker", {first, second}}}, {.task_type = "worker", .task_index = 0}),
        {.start_timeout = std::chrono::milliseconds(100)});
  });

  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("have not come"), HasSubstr(second),
                                      HasSubstr("here is /job:worker/replica:0/task:0, not ")));
}

TEST(MultiWorkerMirroredStrategy, SaysAtOnceWhatIsMissingForNccl) {
  // Nobody is at the second address: it does not wait for that.
  const ClusterSpec spec{{"worker", {free_address(), free_address()}}};
  const MultiWorkerOptions options{.devices = {"/device:CPU:0"},
                                   .communication = {.implementation = CommunicationImplementation::kNccl}};
  const SimpleClusterResolver resolver(spec, {.task_type = "worker", .task_index = 0});

  const Status failure = caught([&] { MultiWorkerMirroredStrategy strategy(resolver, options); });

  EXPECT_EQ(failure.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(failure.message(),
              AllOf(HasSubstr("communication.implementation is kNccl, but "),
                    HasSubstr(missing_for_nccl().empty() ? "CPU:0, which is no GPU" : missing_for_nccl())));
}

}  // namespace
}  // namespace muster
