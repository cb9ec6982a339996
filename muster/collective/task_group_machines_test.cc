// Groups of several machines with several ranks each, and what those of one machine use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <latch>
#include <thread>

#include "muster/base/log.h"
#include "muster/collective/task_group.h"
#include "muster/collective/test_tasks.h"
#include "muster/near/test_process.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::memory_can_be_read;

class GroupsOfMachines : public testing::TestWithParam<GroupSockets>, public testing_support::Tasks {
 protected:
  std::vector<Status> together(const std::vector<int>& machines, bool measure,
                               const std::function<void(TaskGroup&)>& member) {
    const int count = static_cast<int>(machines.size());
    start_tasks(count);
    return Tasks::together(
        count,
        [&](int rank) {
          return of_rank(rank, count,
                         {.timeout = timeout_, .machines = machines, .sockets = GetParam(), .measure = measure});
        },
        member);
  }
  std::chrono::milliseconds timeout_ = std::chrono::minutes(5);
};

INSTANTIATE_TEST_SUITE_P(Ways, GroupsOfMachines, testing::Values(GroupSockets::kOfThisMachine, GroupSockets::kNone),
                         [](const auto& info) { return info.param == GroupSockets::kNone ? "Servers" : "Sockets"; });

TEST_P(GroupsOfMachines, SumInsideEachOfThemFirst) {
  // In the order of the ranks the ones would be lost beside the large numbers.
  const std::vector<float> values{1e8F, 1.0F, -1e8F, 1.0F, 1.0F};
  LogCapture log;

  const std::vector<Status> failures = together({0, 1, 0, 1, 1}, /*measure=*/false, [&](TaskGroup& group) {
    for (const int64_t count : {3, 50'000, 4'000'001}) {
      const at::Tensor own = torch::full({count}, values[static_cast<size_t>(group.rank())]);
      for (int round = 0; round < 3; ++round) {
        EXPECT_TRUE(group.run({}, {own})[0].equal(torch::full({count}, 3.0F))) << count;
      }
    }
    EXPECT_TRUE(group.run({.kind = CollectiveKind::kBroadcast, .root = 4}, {torch::full({9}, group.rank())})[0].equal(
        torch::full({9}, 4)));
  });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
  EXPECT_TRUE(log.contains("larger ones in parts, inside each of 2 machines first"));
}

TEST_P(GroupsOfMachines, SumAsMuchAtOnceAsTheyAreGiven) {
  const std::vector<Status> failures = together({0, 0, 1, 1}, /*measure=*/false, [](TaskGroup& group) {
    constexpr int kCalls = 20;
    std::latch done(kCalls);
    for (int call = 0; call < kCalls; ++call) {
      const int64_t count = call % 2 == 0 ? 3 : 300'000;
      group.start({}, {torch::full({count}, call + group.rank())}, nullptr,
                  [&, call, count](const Status& status, const std::vector<at::Tensor>& sums) {
                    EXPECT_TRUE(status.ok()) << status;
                    EXPECT_TRUE(!status.ok() || sums[0].equal(torch::full({count}, 4 * call + 6)));
                    done.count_down();
                  });
    }
    done.wait();
  });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
}

TEST_P(GroupsOfMachines, ChooseTheSameWaysWhenTheyMeasure) {
  LogCapture log;

  const std::vector<Status> failures = together({0, 0, 1}, /*measure=*/true, [](TaskGroup& group) {
    for (const int64_t count : {3, 50'000, 2'000'000}) {
      EXPECT_TRUE(group.run({}, {torch::full({count}, group.rank())})[0].equal(torch::full({count}, 3))) << count;
    }
  });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
  EXPECT_EQ(log.contains(" us over TCP for 16 MiB)"), GetParam() == GroupSockets::kOfThisMachine)
      << "where there is nothing to choose from";
}

TEST_P(GroupsOfMachines, AllHearWhoHasNotComeToALargeSum) {
  timeout_ = std::chrono::seconds(1);
  std::latch begun(3), over(3);

  // The last one is no leader of anything: nobody waits for it but those of its machine.
  const std::vector<Status> failures = together({0, 1, 1, 1}, /*measure=*/false, [&](TaskGroup& group) {
    if (group.rank() == 3) return over.wait();
    begun.arrive_and_wait();
    const Status failure = failure_of([&] { group.run({}, {torch::ones({4'000'000})}); });
    over.count_down();
    throw Error(failure);
  });

  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(failures[static_cast<size_t>(rank)].code(), StatusCode::kDeadlineExceeded);
    EXPECT_THAT(failures[static_cast<size_t>(rank)].message(), HasSubstr("rank 3"));
  }
}

TEST_P(GroupsOfMachines, AllHearOfAFailureInTheMiddleOfALargeSum) {
  for (const std::vector<int>& machines : {std::vector{0, 0, 1, 1}, std::vector{0, 0, 0, 0}}) {
    std::latch begun(4), over(4);

    const std::vector<Status> failures = together(machines, /*measure=*/false, [&](TaskGroup& group) {
      Cancellation cancellation;
      std::latch one_is_over(1);
      begun.arrive_and_wait();
      std::jthread cancels;
      if (group.rank() == 1) {
        cancels = std::jthread([&] {
          one_is_over.wait();
          cancellation.cancel(Status(StatusCode::kCancelled, "somebody pressed a key"));
        });
      }
      int sums = 0;
      const Status failure = failure_of([&] {
        for (;; ++sums) {
          if (sums == 1) one_is_over.count_down();  // from here on it is always in the middle of one
          group.run({}, {torch::ones({4'000'000})}, group.rank() == 1 ? &cancellation : nullptr);
        }
      });
      if (sums == 0) one_is_over.count_down();
      over.arrive_and_wait();  // the group is there until all have heard of it
      throw Error(failure);
    });

    for (const Status& failure : failures) EXPECT_THAT(failure.message(), HasSubstr("somebody pressed a key"));
  }
}

class GroupsOfOneMachine : public testing::Test, public testing_support::Tasks {};

TEST_F(GroupsOfOneMachine, MeasureTheirWaysAndSayOnceWhichTheyUse) {
  start_tasks(3);
  LogCapture log;

  const std::vector<Status> failures = together(
      3, [](int rank) { return of_rank(rank, 3, {.sockets = GroupSockets::kOfThisMachine}); },
      [](TaskGroup& group) {
        for (const int64_t count : {3, 50'000, 2'000'000}) {
          EXPECT_TRUE(group.run({}, {torch::full({count}, group.rank())})[0].equal(torch::full({count}, 3))) << count;
          EXPECT_TRUE(group.run({.kind = CollectiveKind::kAllGather}, {torch::full({count}, group.rank())})[0]
                          .narrow(0, 2 * count, count)
                          .equal(torch::full({count}, 2)));
        }
      });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
  int said = 0;
  for (const LogLine& line : log.lines()) {
    if (line.text.find("processes of one machine sum ") == std::string::npos) continue;
    ++said;
    EXPECT_THAT(line.text, AllOf(HasSubstr(" us in memory between them, "), HasSubstr(" us over TCP for 16 MiB)")));
    EXPECT_EQ(line.text.find(" us reading each other's memory, ") != std::string::npos, memory_can_be_read());
  }
  EXPECT_EQ(said, 1);
}

TEST_F(GroupsOfOneMachine, RefuseMachinesOfOtherRanks) {
  start_tasks(2);

  const Status failure = failure_of([&] { join(of_rank(0, 2, {.machines = {0, 1, 1}})); });

  EXPECT_EQ(failure.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(failure.message(), HasSubstr("a group of 2 tasks with the machines of 3"));
}

}  // namespace
}  // namespace muster
