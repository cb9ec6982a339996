#include "muster/collective/task_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <set>
#include <thread>

#include "muster/base/log.h"
#include "muster/base/test_wait.h"
#include "muster/collective/test_tasks.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;

enum class Way { kMemory, kSockets, kServers };

class TaskGroups : public testing::TestWithParam<Way>, public testing_support::Tasks {
 protected:
  TaskGroupOptions options(int rank, int count) const {
    TaskGroupOptions made{.timeout = timeout_, .near_memory = GetParam() == Way::kMemory};
    if (GetParam() == Way::kSockets) made.sockets = GroupSockets::kOfThisMachine;
    return Tasks::of_rank(rank, count, std::move(made));
  }
  std::vector<Status> together(int count, const std::function<void(TaskGroup&)>& member) {
    return Tasks::together(count, [&](int rank) { return options(rank, count); }, member);
  }
  void expect_all_well(int count, const std::function<void(TaskGroup&)>& member) {
    for (const Status& failure : together(count, member)) EXPECT_TRUE(failure.ok()) << failure;
  }

  // As messages have it.
  std::string named(int rank) {
    return str_cat("rank ", rank, " (", name(rank), " at 127.0.0.1:1, incarnation ",
                   workers_.at(name(rank))->incarnation(), ")");
  }

  std::chrono::milliseconds timeout_ = std::chrono::minutes(5);
};

std::string name_of_way(const testing::TestParamInfo<Way>& info) {
  switch (info.param) {
    case Way::kMemory: return "Memory";
    case Way::kSockets: return "Sockets";
    case Way::kServers: return "Servers";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Ways, TaskGroups, testing::Values(Way::kMemory, Way::kSockets, Way::kServers), name_of_way);

torch::Tensor numbers_of(int rank, std::vector<int64_t> sizes, torch::Dtype type = torch::kFloat) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(rank) + 1);
  return torch::randn(sizes, generator).mul(10).to(type);
}

TEST_P(TaskGroups, SumSmallAndLargeTensorsToTheSameBitsEverywhere) {
  start_tasks(3);
  for (const int64_t count : {0, 1, 7, 10'000, 3'000'001}) {
    torch::Tensor expected = numbers_of(0, {count}).add(numbers_of(1, {count})).add(numbers_of(2, {count}));

    expect_all_well(3, [&](TaskGroup& group) {
      const torch::Tensor own = numbers_of(group.rank(), {count}), before = own.clone();
      const torch::Tensor sum = group.run({}, {own})[0];

      EXPECT_TRUE(sum.equal(expected)) << count;  // in the order of the ranks
      EXPECT_TRUE(own.equal(before));
      EXPECT_TRUE(count == 0 || sum.data_ptr() != own.data_ptr());
    });
  }
}

TEST_P(TaskGroups, SumManyTensorsOfSeveralTypesAtOnce) {
  for (const int tasks : {2, 3}) {
    start_tasks(tasks);

    expect_all_well(tasks, [&](TaskGroup& group) {
      const int64_t r = group.rank() % 2;
      for (const int64_t large : {1, 100'000, 3'000'000}) {
        const std::vector<torch::Tensor> sums =
            group.run({}, {torch::full({2, 3}, r), torch::full({large}, r + 0.5), torch::full({}, 2 * r),
                           torch::ones({3, 2}).t().mul(r), torch::full({2}, 256.0 + r, torch::kBFloat16)});

        EXPECT_TRUE(sums[0].equal(torch::full({2, 3}, 1)));
        EXPECT_TRUE(sums[1].equal(torch::full({large}, tasks == 2 ? 2.0 : 2.5)));
        EXPECT_TRUE(sums[2].equal(torch::full({}, 2)));
        EXPECT_TRUE(sums[3].equal(torch::ones({2, 3})));
        EXPECT_EQ(sums[4].scalar_type(), torch::kBFloat16);
      }
    });
  }
}

TEST_P(TaskGroups, AddUpANumberAndARowOfEachRank) {
  for (const int tasks : {2, 4}) {
    start_tasks(tasks);

    expect_all_well(tasks, [&](TaskGroup& group) {
      const auto number = static_cast<float>(group.rank() + 1);
      const torch::Tensor one = torch::full({}, number), row = torch::tensor({2 * number - 1, 2 * number});
      const std::vector<torch::Tensor> sums = group.run({}, {one, row});

      EXPECT_EQ(sums[0].item<float>(), tasks == 2 ? 3 : 10);
      EXPECT_TRUE(sums[1].equal(tasks == 2 ? torch::tensor({4.0F, 6.0F}) : torch::tensor({16.0F, 20.0F})));
    });
  }
}

TEST_P(TaskGroups, RoundHalfPrecisionOnceAtTheEnd) {
  start_tasks(3);

  expect_all_well(3, [&](TaskGroup& group) {
    // 256 + 1 is 256 in bfloat16, and so would be the sum.
    const torch::Tensor own = torch::full({1}, group.rank() == 0 ? 256.0 : 1.0, torch::kBFloat16);
    EXPECT_EQ(group.run({}, {own})[0].item<float>(), 258.0f);
  });
}

TEST_P(TaskGroups, FindTheLeastTheMostAndWhetherAnyOrAllHold) {
  start_tasks(2);

  expect_all_well(2, [&](TaskGroup& group) {
    const torch::Tensor own = torch::tensor({group.rank(), -group.rank()});
    EXPECT_TRUE(group.run({.reduction = Reduction::kMin}, {own})[0].equal(torch::tensor({0, -1})));
    EXPECT_TRUE(group.run({.reduction = Reduction::kMax}, {own})[0].equal(torch::tensor({1, 0})));
    const torch::Tensor flags = torch::tensor({group.rank() == 0, true});
    EXPECT_TRUE(group.run({.reduction = Reduction::kMin}, {flags})[0].equal(torch::tensor({false, true})));
    EXPECT_TRUE(group.run({.reduction = Reduction::kMax}, {flags})[0].equal(torch::tensor({true, true})));
  });
}

TEST_P(TaskGroups, GatherDifferentNumbersOfRows) {
  start_tasks(3);

  expect_all_well(3, [&](TaskGroup& group) {
    const int r = group.rank();
    const torch::Tensor all =
        group.run({.kind = CollectiveKind::kAllGather}, {torch::full({r, 2}, static_cast<float>(r))})[0];
    EXPECT_TRUE(all.equal(torch::tensor({{1.0f, 1.0f}, {2.0f, 2.0f}, {2.0f, 2.0f}})));
  });
}

TEST_P(TaskGroups, GiveAllWhatOneHas) {
  start_tasks(3);

  expect_all_well(3, [&](TaskGroup& group) {
    const torch::Tensor got =
        group.run({.kind = CollectiveKind::kBroadcast, .root = 1}, {numbers_of(group.rank(), {9})})[0];
    EXPECT_TRUE(got.equal(numbers_of(1, {9})));
  });
}

TEST_P(TaskGroups, GiveTensorsThatMayBeWrittenTo) {
  start_tasks(2);

  expect_all_well(2, [&](TaskGroup& group) {
    for (const int64_t count : {3, 50'000, 500'000, 2'000'000}) {
      const torch::Tensor own = numbers_of(group.rank(), {count}), before = own.clone();
      for (const CollectiveKind kind :
           {CollectiveKind::kAllReduce, CollectiveKind::kAllGather, CollectiveKind::kBroadcast}) {
        const torch::Tensor got = group.run({.kind = kind}, {own})[0];
        got.zero_();
        EXPECT_TRUE(own.equal(before));
      }
    }
  });
}

TEST_P(TaskGroups, MayBeFarAheadOfEachOther) {
  start_tasks(2);
  std::latch ahead(1);

  // More than a socket and the memory beside it hold.
  expect_all_well(2, [&](TaskGroup& group) {
    constexpr int kCalls = 100;
    if (group.rank() == 1) ahead.wait();
    std::latch done(kCalls);
    std::atomic<int> right = 0;
    for (int i = 0; i < kCalls; ++i) {
      group.start({}, {torch::full({i % 3 == 0 ? 1'000 : 120'000}, i, torch::kFloat)}, nullptr,
                  [&, i](const Status& status, const std::vector<at::Tensor>& results) {
                    if (status.ok() && results[0].eq(2.0 * i).all().item<bool>()) ++right;
                    done.count_down();
                  });
    }
    if (group.rank() == 0) ahead.count_down();
    done.wait();
    EXPECT_EQ(right, kCalls);
  });
}

TEST_P(TaskGroups, KeepTheirOrderWhenCallsAreStartedAtOnce) {
  start_tasks(2);

  expect_all_well(2, [&](TaskGroup& group) {
    constexpr int kCalls = 20;
    std::vector<torch::Tensor> sums(kCalls);
    std::latch done(kCalls);
    for (int i = 0; i < kCalls; ++i) {
      torch::Tensor own = torch::full({i % 2 == 0 ? 3 : 50'000}, i);
      group.start({}, {own}, nullptr, [&, i](const Status& status, const std::vector<at::Tensor>& results) {
        EXPECT_TRUE(status.ok()) << status;
        if (status.ok()) sums[i] = results[0];
        done.count_down();
      });
      own.zero_();  // is the caller's again
    }
    done.wait();
    for (int i = 0; i < kCalls; ++i) EXPECT_EQ(sums[i].max().item<int64_t>(), 2 * i);
  });
}

TEST_P(TaskGroups, OfTheSameTasksKeepTheirCallsApart) {
  start_tasks(2);

  expect_all_well(2, [&](TaskGroup& first) {
    const std::unique_ptr<TaskGroup> second = join(options(first.rank(), 2));
    EXPECT_NE(first.generation(), second->generation());
    const auto sums = [](TaskGroup& group, int64_t times) {
      for (const int64_t count : {3, 50'000, 2'000'000}) {
        const torch::Tensor own = torch::full({count}, times * (group.rank() + 1));
        EXPECT_TRUE(group.run({}, {own})[0].equal(torch::full({count}, 3 * times)));
      }
    };
    const std::jthread beside([&] {
      for (int i = 0; i < 10; ++i) sums(*second, 100);
    });
    for (int i = 0; i < 10; ++i) sums(first, 1);
  });
}

TEST_P(TaskGroups, SayWhoIsAtWhatWhenTheirCallsDiffer) {
  start_tasks(2);

  const std::vector<Status> failures =
      together(2, [&](TaskGroup& group) { group.run({}, {torch::ones({group.rank() == 0 ? 2 : 3})}); });

  for (const Status& failure : failures) {
    EXPECT_EQ(failure.code(), StatusCode::kInvalidArgument) << failure;
    EXPECT_THAT(failure.message(), AllOf(HasSubstr("rank 0 (/job:worker/replica:0/task:0"),
                                         HasSubstr("rank 1 (/job:worker/replica:0/task:1"), HasSubstr("float32[2]"),
                                         HasSubstr("float32[3]")));
  }
}

TEST_P(TaskGroups, GoOnAfterACallThatThereIsNot) {
  start_tasks(2);

  expect_all_well(2, [&](TaskGroup& group) {
    const Status failure = failure_of([&] { group.run({}, {torch::tensor({true})}); });
    EXPECT_EQ(failure.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(group.run({}, {torch::ones({1})})[0].item<float>(), 2);
    group.start({}, {torch::tensor({true})}, nullptr, [](const Status& status, const std::vector<at::Tensor>&) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    });
    EXPECT_EQ(group.run({}, {torch::ones({1})})[0].item<float>(), 2);
  });
}

TEST_P(TaskGroups, FailTogetherAndStayFailed) {
  start_tasks(3);
  std::latch formed(3);

  const std::vector<Status> failures = together(3, [&](TaskGroup& group) {
    formed.arrive_and_wait();  // or one could fail at the start
    Cancellation cancellation;
    if (group.rank() == 1) cancellation.cancel(Status(StatusCode::kCancelled, "somebody pressed a key"));
    const Status first = failure_of([&] { group.run({}, {torch::ones({1})}, &cancellation); });
    EXPECT_THAT(first.message(), HasSubstr("somebody pressed a key"));
    EXPECT_EQ(first.code(), group.rank() == 1 ? StatusCode::kCancelled : StatusCode::kAborted);
    group.run({}, {torch::ones({1})});
  });

  for (const Status& failure : failures) EXPECT_THAT(failure.message(), HasSubstr("the group has failed before"));
}

TEST_P(TaskGroups, NameWhoHasNotComeToACall) {
  start_tasks(2);
  timeout_ = std::chrono::milliseconds(100);
  const CollectiveCall gather{.kind = CollectiveKind::kAllGather};
  const torch::Tensor ids = torch::tensor({3, 5}), rows = torch::ones({2, 4});
  const std::vector<std::pair<CollectiveCall, std::vector<torch::Tensor>>> calls{
      {{}, {rows}}, {{}, {rows, rows}}, {gather, {ids, rows}}, {gather, {ids, rows, ids, rows}}};
  for (const auto& call : calls) {
    std::latch over(1);
    const std::vector<Status> failures = together(2, [&](TaskGroup& group) {
      if (group.rank() == 1) return over.wait();
      const Status failure = failure_of([&] { group.run(call.first, call.second); });
      over.count_down();
      throw Error(failure);
    });

    EXPECT_EQ(failures[0].code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(failures[0].message(),
                AllOf(HasSubstr("rank 1 (/job:worker/replica:0/task:1"), HasSubstr(") did not come to call ")));
    EXPECT_THAT(failures[0].message(), HasSubstr(" of the group within 0.1 s"));
  }
}

TEST_P(TaskGroups, DivideRowsAmongTheRanks) {
  start_tasks(3);
  for (const int64_t width : {1, 700'000}) {
    const torch::Tensor rows = torch::arange(6 * width).view({6, width});
    expect_all_well(3, [&](TaskGroup& group) {
      const int64_t r = group.rank();
      const torch::Tensor share = rows.narrow(0, 2 * r, 2);

      const auto sums = group.run({.kind = CollectiveKind::kReduceScatter}, {rows * (r + 1), torch::ones({3})});
      const auto dealt = group.run({.kind = CollectiveKind::kAllToAll}, {rows * (r + 1)});
      const Status refused = failure_of([&] { group.run({.kind = CollectiveKind::kAllToAll}, {torch::ones({4})}); });

      EXPECT_TRUE(sums[0].equal(share * 6));
      EXPECT_TRUE(sums[1].equal(torch::full({1}, 3.0F)));
      EXPECT_TRUE(dealt[0].equal(torch::cat({share, share * 2, share * 3})));
      EXPECT_THAT(refused.message(), HasSubstr("no rows for 3 ranks alike"));
    });
  }
}

// What one fails with in the middle of a message, the other one hears of all the same.
TEST_P(TaskGroups, HearOfAFailureInTheMiddleOfALargeTensor) {
  start_tasks(2);
  std::latch over(1);

  const std::vector<Status> failures = together(2, [&](TaskGroup& group) {
    if (group.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // so that the other one is in the middle of it
      const Status failure = failure_of([&] { group.run({}, {torch::ones({20'000'000})}); });
      over.count_down();
      throw Error(failure);
    }
    Cancellation cancellation;
    const std::jthread cancels([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      cancellation.cancel(Status(StatusCode::kCancelled, "somebody pressed a key"));
    });
    const Status failure = failure_of([&] { group.run({}, {torch::ones({20'000'000})}, &cancellation); });
    over.wait();  // the group is there until the other one has heard of it
    throw Error(failure);
  });

  for (const Status& failure : failures) EXPECT_THAT(failure.message(), HasSubstr("somebody pressed a key"));
}

TEST_P(TaskGroups, SendComplexNumbersAsTheyAreAndNotAsTheyLie) {
  start_tasks(2);
  expect_all_well(2, [&](TaskGroup& group) {
    const torch::Tensor given = torch::complex(torch::ones({2}), torch::full({2}, group.rank() + 1.0F));
    const auto gathered = group.run({.kind = CollectiveKind::kAllGather}, {given.conj()});
    EXPECT_TRUE(torch::imag(gathered[0]).equal(torch::tensor({-1.0F, -1.0F, -2.0F, -2.0F})));
  });
}

TEST_P(TaskGroups, OfOneRankHaveItsOwnSum) {
  start_tasks(1);
  expect_all_well(1, [&](TaskGroup& group) {
    for (const int64_t count : {3, 3'000'000}) {
      EXPECT_TRUE(group.run({}, {torch::ones({count})})[0].equal(torch::ones({count})));
    }
  });
}

// More than the ways between them hold.
TEST_P(TaskGroups, NameWhoHasNotComeToACallOfLargeTensors) {
  start_tasks(2);
  timeout_ = std::chrono::milliseconds(100);
  std::latch over(1);

  const std::vector<Status> failures = together(2, [&](TaskGroup& group) {
    if (group.rank() == 1) return over.wait();
    const Status failure = failure_of([&] { group.run({}, {torch::ones({20'000'000})}); });
    over.count_down();
    throw Error(failure);
  });

  EXPECT_EQ(failures[0].code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(failures[0].message(), HasSubstr("rank 1 (/job:worker/replica:0/task:1"));
}

TEST_P(TaskGroups, NameWhoHasNotComeAtTheStart) {
  start_tasks(2);
  TaskGroupOptions alone = options(0, 2);
  alone.start_timeout = std::chrono::milliseconds(100);

  const Status failure = failure_of([&] { join(alone); });

  EXPECT_EQ(failure.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(failure.message(), HasSubstr(named(1)));
}

// A server that nobody is at.
class AbsentWorker : public LocalWorker {
 public:
  using LocalWorker::LocalWorker;
  void start_status(const Cancellation&, StatusDone done) override {
    done(Status(StatusCode::kUnavailable, "connection refused"), {});
  }
};

TEST_P(TaskGroups, NameWhoWaitsForWhomWithTheirAddressesAndIncarnations) {
  start_tasks(1);
  workers_[name(1)] =
      std::make_shared<AbsentWorker>(LocalWorkerOptions{.devices = {.task = name(1), .cpus = 1, .gpus = false}});
  TaskGroupOptions alone = options(0, 2);
  alone.start_timeout = std::chrono::milliseconds(100);

  const Status failure = failure_of([&] { join(alone); });

  EXPECT_THAT(failure.message(), HasSubstr(str_cat(named(0), ": these have not come within 0.1 s: rank 1 (", name(1),
                                                   " at 127.0.0.1:1): connection refused")));
}

// Is another process whenever it is asked again, or from some time on.
class RestartedWorker : public LocalWorker {
 public:
  using LocalWorker::LocalWorker;
  void start_status(const Cancellation&, StatusDone done) override { done({}, LocalWorker::status()); }
  WorkerStatus status(bool wait) override {
    WorkerStatus now = LocalWorker::status(wait);
    if (restarted) now.incarnation = 77;
    return now;
  }

  std::atomic<bool> restarted = true;
};

TEST_P(TaskGroups, NameTheIncarnationsOfWhoWasStartedAnew) {
  start_tasks(1);
  workers_[name(1)] =
      std::make_shared<RestartedWorker>(LocalWorkerOptions{.devices = {.task = name(1), .cpus = 1, .gpus = false}});
  TaskGroupOptions alone = options(0, 2);
  alone.start_timeout = std::chrono::milliseconds(300);
  LogCapture log;

  (void)failure_of([&] { join(alone); });

  EXPECT_TRUE(log.contains(str_cat(named(1), " was started anew, as incarnation 77; the group is formed anew")));
  EXPECT_TRUE(log.contains(str_cat(named(0), ": ")));
}

class RanksOfWhomOneIsReplaced : public testing::Test, public testing_support::Tasks {};

TEST_F(RanksOfWhomOneIsReplaced, SayThatItIsAnotherProcess) {
  start_tasks(1);
  const auto second =
      std::make_shared<RestartedWorker>(LocalWorkerOptions{.devices = {.task = name(1), .cpus = 1, .gpus = false}});
  second->restarted = false;
  workers_[name(1)] = second;
  std::latch over(1);

  const auto options = [](int rank) { return of_rank(rank, 2); };
  const std::vector<Status> failures = together(2, options, [&](TaskGroup& group) {
    if (group.rank() == 1) return over.wait();
    second->restarted = true;
    const Status failure = failure_of([&] { group.run({}, {torch::ones({1})}); });
    over.count_down();
    throw Error(failure);
  });

  EXPECT_EQ(failures[0].code(), StatusCode::kFailedPrecondition) << failures[0];
  EXPECT_THAT(failures[0].message(),
              AllOf(HasSubstr(str_cat("rank 1 (", name(1))), HasSubstr(") was started anew, as incarnation 77")));
}

// Takes whoever asks it first for gone, as a server does whose caller was stopped for a while.
class HastyWorker : public LocalWorker {
 public:
  using LocalWorker::LocalWorker;
  void receive(uint64_t meeting, int64_t edge, const RunOptions& options, ReceiveDone done) override {
    if (asked_.exchange(true)) return LocalWorker::receive(meeting, edge, options, std::move(done));
    done(Status(StatusCode::kCancelled, "the caller has gone"), {});
  }

 private:
  std::atomic<bool> asked_ = false;
};

// In its place one of an earlier job, with more workers, is slow to end.
class SucceedingWorker : public LocalWorker {
 public:
  using LocalWorker::LocalWorker;
  void start_status(const Cancellation&, StatusDone done) override {
    WorkerStatus now = LocalWorker::status();
    if (asked_++ < 3) {
      now.incarnation = 77;
      now.workers = 3;
    }
    done({}, now);
  }

 private:
  std::atomic<int> asked_ = 0;
};

TEST_P(TaskGroups, WaitForTheEndOfAnEarlierJobOfAnotherSize) {
  start_tasks(1);
  workers_[name(1)] =
      std::make_shared<SucceedingWorker>(LocalWorkerOptions{.devices = {.task = name(1), .cpus = 1, .gpus = false}});

  expect_all_well(2, [](TaskGroup& group) { EXPECT_EQ(group.run({}, {torch::ones({1})})[0].item<float>(), 2); });
}

TEST_P(TaskGroups, AreFormedOfRanksThatWereTakenForGone) {
  start_tasks(1);
  workers_[name(1)] =
      std::make_shared<HastyWorker>(LocalWorkerOptions{.devices = {.task = name(1), .cpus = 1, .gpus = false}});

  expect_all_well(2, [](TaskGroup& group) { EXPECT_EQ(group.run({}, {torch::ones({1})})[0].item<float>(), 2); });
}

TEST_P(TaskGroups, NameThePeerThatHasFailed) {
  start_tasks(2);
  std::latch formed(2), restarted(1);

  const std::vector<Status> failures = together(2, [&](TaskGroup& group) {
    formed.count_down();
    formed.wait();
    if (group.rank() == 0) {
      restarted.wait();
      group.run({}, {torch::ones({1})});
    } else {
      workers_[name(1)]->abort(group.generation(), Status(StatusCode::kUnavailable, "the process has ended"));
      restarted.count_down();
    }
  });

  EXPECT_EQ(failures[0].code(), StatusCode::kUnavailable) << failures[0];
  EXPECT_THAT(failures[0].message(), HasSubstr("rank 1 (/job:worker/replica:0/task:1"));
}

TEST_P(TaskGroups, AreFormedAnewBySameProcesses) {
  start_tasks(2);
  std::set<uint64_t> generations;
  absl::Mutex mu;

  for (size_t round = 1; round <= 20; ++round) {
    expect_all_well(2, [&](TaskGroup& group) {
      EXPECT_EQ(group.run({}, {torch::full({1}, group.rank())})[0].item<int64_t>(), 1);
      absl::MutexLock lock(&mu);
      generations.insert(group.generation());
    });
    EXPECT_EQ(generations.size(), round) << "one of both, and another one each time";
  }
}

TEST_P(TaskGroups, SayOnceHowTheySum) {
  start_tasks(3);
  LogCapture log;

  expect_all_well(3, [](TaskGroup&) {});

  EXPECT_TRUE(log.contains("all 3 are here; sums of up to "));
  const auto says = [](const LogLine& line) {
    return line.level == LogLevel::kInfo && line.text.find("(measured: ") != std::string::npos;
  };
  EXPECT_EQ(std::ranges::count_if(log.lines(), says), 1) << "for everybody to see";
}

TEST_P(TaskGroups, MeasureNothingIfTold) {
  start_tasks(2);
  LogCapture log;
  const auto usual = [&](int rank) {
    TaskGroupOptions made = options(rank, 2);
    made.measure = false;
    return made;
  };

  for (const Status& failure : Tasks::together(2, usual, [](TaskGroup&) {})) EXPECT_TRUE(failure.ok()) << failure;

  EXPECT_TRUE(log.contains("sums of up to 32 KiB go with the first message, of up to 4 MiB whole"));
  EXPECT_FALSE(log.contains("measured"));
}

TEST_P(TaskGroups, AreNotFormedOfRanksThatSumInDifferentWays) {
  start_tasks(2);
  const auto one_measures = [&](int rank) {
    TaskGroupOptions made = options(rank, 2);
    made.measure = rank == 1;
    return made;
  };

  for (const Status& failure : Tasks::together(2, one_measures, [](TaskGroup&) {})) {
    EXPECT_EQ(failure.code(), StatusCode::kInvalidArgument) << failure;
    EXPECT_THAT(failure.message(), AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr("that measures")));
  }
}

}  // namespace
}  // namespace muster
