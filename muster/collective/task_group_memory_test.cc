// Groups whose tasks share memory, as processes of one machine do.
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

using testing::HasSubstr;
using testing_support::comes_to_wait;

// Counts what others ask it for.
class AskedWorker : public LocalWorker {
 public:
  using LocalWorker::LocalWorker;
  void receive(uint64_t meeting, int64_t edge, const RunOptions& options, ReceiveDone done) override {
    ++asked;
    LocalWorker::receive(meeting, edge, options, std::move(done));
  }

  std::atomic<int> asked = 0;
};

class GroupsInMemory : public testing::Test, public testing_support::Tasks {
 protected:
  static constexpr int kTasks = 2;

  GroupsInMemory() {
    for (int rank = 0; rank < kTasks; ++rank) {
      asked_.push_back(
          std::make_shared<AskedWorker>(LocalWorkerOptions{.devices = {.task = name(rank), .cpus = 1, .gpus = false}}));
      workers_[name(rank)] = asked_.back();
    }
  }
  std::vector<Status> together(const std::function<void(TaskGroup&)>& member) {
    return Tasks::together(kTasks, [](int rank) { return of_rank(rank, kTasks, {.measure = false}); }, member);
  }
  int asked() const { return asked_[0]->asked + asked_[1]->asked; }

  std::vector<std::shared_ptr<AskedWorker>> asked_;  // by rank
};

TEST_F(GroupsInMemory, SumLargeTensorsWithoutAskingEachOtherForAnything) {
  std::latch formed(kTasks), known(1);
  int asked_before = 0;

  const std::vector<Status> failures = together([&](TaskGroup& group) {
    formed.arrive_and_wait();
    if (group.rank() == 0) {
      asked_before = asked();
      known.count_down();
    }
    known.wait();
    for (const int64_t count : {12'345'678, 3, 8'000'000}) {
      const at::Tensor sum = group.run({}, {torch::full({count}, group.rank() + 1.0F)})[0];
      EXPECT_TRUE(sum.equal(torch::full({count}, 3.0F)));
    }
  });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
  EXPECT_EQ(asked(), asked_before) << "what they sum fits into the memory between them";
}

TEST_F(GroupsInMemory, SumLargeTensorsThatArePinned) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";

  const std::vector<Status> failures = together([&](TaskGroup& group) {
    const at::Tensor pinned = torch::full({2'000'000}, group.rank() + 1.0F).pin_memory();
    EXPECT_TRUE(group.run({}, {pinned})[0].equal(torch::full({2'000'000}, 3.0F)));
  });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
}

TEST_F(GroupsInMemory, CopyNothingThatTheirCallerHasLetGoOf) {
  std::latch started(1), over(kTasks);

  const std::vector<Status> failures = together([&](TaskGroup& group) {
    if (group.rank() == 1) started.wait();
    at::Tensor own = torch::ones({1'000}), kept = torch::ones({1'000});
    const auto memory = own.storage().getWeakStorageImpl();
    std::vector<at::Tensor> values;
    values.push_back(std::move(own));
    values.push_back(kept);
    std::vector<at::Tensor> sums;
    std::latch done(1);
    group.start({}, std::move(values), nullptr, [&](const Status& status, std::vector<at::Tensor> results) {
      EXPECT_TRUE(status.ok()) << status;
      sums = std::move(results);
      done.count_down();
    });
    if (group.rank() == 0) {
      EXPECT_FALSE(memory.expired()) << "the call goes on with what it was given";
      kept.zero_();
      started.count_down();
    }
    done.wait();
    for (const at::Tensor& sum : sums) EXPECT_EQ(sum.sum().item<float>(), 2'000);
    EXPECT_EQ(sums.size(), 2u);
    over.arrive_and_wait();
  });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
}

TEST_F(GroupsInMemory, AreCancelledWhileNobodyReadsWhatTheySend) {
  std::latch over(1);

  const std::vector<Status> failures = together([&](TaskGroup& group) {
    if (group.rank() == 1) return over.wait();
    Cancellation cancellation;
    const std::jthread cancels([&, sends = ::gettid()] {
      EXPECT_TRUE(comes_to_wait(sends)) << "for room";
      cancellation.cancel(Status(StatusCode::kCancelled, "somebody pressed a key"));
    });
    // More messages than the way between the two holds.
    const std::vector<at::Tensor> many(2'000, torch::ones({1'000}));
    const Status failure = failure_of([&] { group.run({.kind = CollectiveKind::kAllGather}, many, &cancellation); });
    over.count_down();
    throw Error(failure);
  });

  EXPECT_EQ(failures[0].code(), StatusCode::kCancelled) << failures[0];
  EXPECT_THAT(failures[0].message(), HasSubstr("somebody pressed a key"));
}

}  // namespace
}  // namespace muster
