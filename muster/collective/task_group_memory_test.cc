// Groups whose tasks share memory, as processes of one machine do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <thread>

#include "muster/collective/task_group.h"
#include "muster/collective/test_tasks.h"
#include "muster/near/test_process.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::comes_to_wait;
using testing_support::memory_can_be_read;

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
  std::vector<Status> together(const std::function<void(TaskGroup&)>& member, bool reads = true) {
    const auto options = [&](int rank) { return of_rank(rank, kTasks, {.read_memory = reads, .measure = false}); };
    return Tasks::together(kTasks, options, member);
  }
  int asked() const { return asked_[0]->asked + asked_[1]->asked; }

  std::vector<std::shared_ptr<AskedWorker>> asked_;  // by rank
};

TEST_F(GroupsInMemory, SumLargeTensorsWithoutAskingEachOtherForAnything) {
  for (const bool reads : {true, false}) {
    std::latch formed(kTasks), known(1);
    int asked_before = 0;

    const auto member = [&](TaskGroup& group) {
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
    };
    const std::vector<Status> failures = together(member, reads);

    for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
    EXPECT_EQ(asked(), asked_before) << (reads ? "they read what they sum where it is"
                                               : "what they sum fits into the memory between them");
  }
}

TEST_F(GroupsInMemory, SumManyLargeTensorsAtOnce) {
  for (const bool reads : {true, false}) {
    const auto member = [&](TaskGroup& group) {
      constexpr int kCalls = 12;
      std::atomic<int> right = 0;
      std::latch done(kCalls);
      for (int i = 0; i < kCalls; ++i) {
        const int64_t count = i % 3 == 0 ? 7 : 1'500'000;
        group.start({}, {torch::full({count}, i + group.rank(), torch::kFloat)}, nullptr,
                    [&, i, count](const Status& status, const std::vector<at::Tensor>& results) {
                      EXPECT_TRUE(status.ok()) << status;
                      if (status.ok() && results[0].equal(torch::full({count}, 2.0F * i + 1))) ++right;
                      done.count_down();
                    });
      }
      done.wait();
      EXPECT_EQ(right, kCalls);
    };

    for (const Status& failure : together(member, reads)) EXPECT_TRUE(failure.ok()) << failure;
  }
}

TEST_F(GroupsInMemory, AllFailWhenOneOfManyLargeSumsIsCancelled) {
  constexpr int kCalls = 6;
  Cancellation cancellation;
  std::latch cancelled(1), over(kTasks);

  const std::vector<Status> failures = together([&](TaskGroup& group) {
    std::vector<Status> statuses(kCalls);
    std::latch done(kCalls);
    const int calls = group.rank() == 0 ? kCalls : kCalls - 1;  // without the other one the last of them cannot end
    if (group.rank() == 1) done.count_down();
    for (int i = 0; i < calls; ++i) {
      group.start({}, {torch::full({1'500'000}, 1.0F)}, i == kCalls - 1 ? &cancellation : nullptr,
                  [&, i](const Status& status, const std::vector<at::Tensor>& results) {
                    if (status.ok()) {
                      EXPECT_TRUE(results[0].equal(torch::full({1'500'000}, 2.0F)));
                    }
                    statuses[static_cast<size_t>(i)] = status;
                    done.count_down();
                  });
    }
    if (group.rank() == 0) cancellation.cancel(Status(StatusCode::kCancelled, "somebody pressed a key"));
    done.wait();
    if (group.rank() == 0) {
      cancelled.count_down();
    } else {
      cancelled.wait();
      statuses.back() = failure_of([&] { group.run({}, {torch::ones({1'500'000})}); });
    }
    over.arrive_and_wait();  // the group is there until all have heard of it
    throw Error(statuses.back());
  });

  for (const Status& failure : failures) EXPECT_THAT(failure.message(), HasSubstr("somebody pressed a key"));
}

TEST_F(GroupsInMemory, KeepWhatOthersMayBeReadingAfterACallThatHasFailed) {
  if (!memory_can_be_read()) GTEST_SKIP() << "this machine does not let a process read another one's memory";
  std::latch over(1);

  const std::vector<Status> failures = together([&](TaskGroup& group) {
    if (group.rank() == 1) return over.wait();
    at::Tensor own = torch::ones({4'000'000});
    const auto memory = own.storage().getWeakStorageImpl();
    std::vector<at::Tensor> values;
    values.push_back(std::move(own));
    Cancellation cancellation;
    const std::jthread cancels([&, waits = ::gettid()] {
      EXPECT_TRUE(comes_to_wait(waits));
      cancellation.cancel(Status(StatusCode::kCancelled, "somebody pressed a key"));
    });
    const Status failure = failure_of([&] { group.run({}, std::move(values), &cancellation); });
    EXPECT_FALSE(memory.expired()) << "the group has said where it is";
    over.count_down();
    throw Error(failure);
  });

  EXPECT_EQ(failures[0].code(), StatusCode::kCancelled) << failures[0];
}

TEST_F(GroupsInMemory, NameTheOneWhoseMemoryCannotBeRead) {
  if (!memory_can_be_read()) GTEST_SKIP() << "this machine does not let a process read another one's memory";
  constexpr int64_t kCount = 4'000'000;
  constexpr size_t kBytes = kCount * sizeof(float);
  void* const place = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(place, MAP_FAILED);
  // Somewhere in the first half, which rank 0 sums up.
  ASSERT_EQ(::mprotect(static_cast<char*>(place) + (1 << 20), 64 << 10, PROT_NONE), 0);
  std::latch over(kTasks);

  const std::vector<Status> failures = together([&](TaskGroup& group) {
    const at::Tensor own = group.rank() == 0 ? torch::ones({kCount}) : torch::from_blob(place, {kCount});
    const Status failure = failure_of([&] { group.run({}, {own}); });
    over.arrive_and_wait();  // the group is there until all have heard of it
    throw Error(failure);
  });
  ::munmap(place, kBytes);

  for (const Status& failure : failures) {
    EXPECT_EQ(failure.code(), StatusCode::kUnavailable) << failure;
    EXPECT_THAT(failure.message(), AllOf(HasSubstr(str_cat("rank 1 (", name(1))),
                                         HasSubstr("does not have what it has said is in its memory")));
  }
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
