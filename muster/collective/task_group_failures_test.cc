// How whoever waits in a group comes to hear that there is nothing to wait for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <thread>

#include "muster/collective/task_group.h"
#include "muster/collective/test_tasks.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::comes_to_wait;

// What a group has between its ranks: memory, connections, or the servers alone. And how much it sums: so many elements
// that they go whole, in the first message, or that nothing but a few words is sent.
struct WayToFail {
  const char* name;
  bool memory, reads;
  GroupSockets sockets;
  int64_t count = 1;
};

class WaitingRanks : public testing::TestWithParam<WayToFail>, public testing_support::Tasks {
 protected:
  static at::Tensor values() { return torch::ones({GetParam().count}); }
  // The second one comes to no call until the first one has failed. Returns what that has failed with.
  Status alone(const std::function<void(TaskGroup&)>& first) {
    std::latch over(1);
    const auto options = [](int rank) {
      return of_rank(rank, 2,
                     {.near_memory = GetParam().memory,
                      .read_memory = GetParam().reads,
                      .sockets = GetParam().sockets,
                      .measure = false});
    };
    return together(2, options, [&](TaskGroup& group) {
      if (group.rank() == 1) return over.wait();
      const Status failure = failure_of([&] { first(group); });
      over.count_down();
      throw Error(failure);
    })[0];
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, WaitingRanks,
                         testing::Values(WayToFail{"Memory", true, true, GroupSockets::kNone, 4'000'000},
                                         WayToFail{"Trays", true, false, GroupSockets::kNone, 4'000'000},
                                         WayToFail{"FirstMessages", true, false, GroupSockets::kNone},
                                         WayToFail{"Sockets", false, false, GroupSockets::kOfThisMachine},
                                         WayToFail{"Servers", false, false, GroupSockets::kNone}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(WaitingRanks, AreWokenWhenTheirCallIsCancelled) {
  start_tasks(2);

  const Status failure = alone([](TaskGroup& group) {
    Cancellation cancellation;
    const std::jthread cancels([&, waits = ::gettid()] {
      EXPECT_TRUE(comes_to_wait(waits));
      cancellation.cancel(Status(StatusCode::kCancelled, "somebody pressed a key"));
    });
    group.run({}, {values()}, &cancellation);
  });

  EXPECT_EQ(failure.code(), StatusCode::kCancelled) << failure;
  EXPECT_THAT(failure.message(), HasSubstr("somebody pressed a key"));
}

TEST_P(WaitingRanks, AreWokenWhenTheirTaskCannotGoOn) {
  start_tasks(2);

  const Status failure = alone([](TaskGroup& group) {
    const std::jthread fails([&, waits = ::gettid()] {
      EXPECT_TRUE(comes_to_wait(waits));
      group.fail(Status(StatusCode::kInternal, "the disk is on fire"));
    });
    group.run({}, {values()});
  });

  EXPECT_EQ(failure.code(), StatusCode::kInternal) << failure;
  EXPECT_THAT(failure.message(), AllOf(HasSubstr("rank 0"), HasSubstr("the disk is on fire")));
}

// Answers until it is down.
class WorkerThatGoesDown : public LocalWorker {
 public:
  using LocalWorker::LocalWorker;
  void start_status(const Cancellation&, StatusDone done) override { done({}, LocalWorker::status()); }
  WorkerStatus status(bool wait) override {
    if (down) throw unavailable("connection refused");
    return LocalWorker::status(wait);
  }

  std::atomic<bool> down = false;
};

TEST_P(WaitingRanks, LookWhetherTheOtherOneIsDown) {
  start_tasks(1);
  const auto second =
      std::make_shared<WorkerThatGoesDown>(LocalWorkerOptions{.devices = {.task = name(1), .cpus = 1, .gpus = false}});
  workers_[name(1)] = second;

  const Status failure = alone([&](TaskGroup& group) {
    second->down = true;
    group.run({}, {values()});
  });

  EXPECT_EQ(failure.code(), StatusCode::kUnavailable) << failure;
  EXPECT_THAT(failure.message(),
              AllOf(HasSubstr(str_cat("rank 1 (", name(1))), HasSubstr("does not answer: connection refused")));
}

}  // namespace
}  // namespace muster
