#include "muster/collective/gpu_ranks.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <latch>
#include <thread>

#include "muster/base/log.h"
#include "muster/collective/test_tasks.h"

namespace muster::gpu_ranks_test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing_support::Tasks;

// Stands for what connects the GPUs of all ranks: what it sums depends on nothing but the order in which they come.
struct Switchboard {
  explicit Switchboard(int ranks) : calls(static_cast<size_t>(ranks)) {}
  int host_sums = 0;  // of the same bytes, that each call waits for: so it is slower than the host is
  absl::Mutex mu;
  std::vector<std::vector<at::Tensor>> calls ABSL_GUARDED_BY(mu);  // by rank, in their order
};

// Takes doubles, as if those were on GPUs.
class FakeGpus : public GpuRanks {
 public:
  FakeGpus(Switchboard& board, Collectives& group)
      : board_(board), group_(group), rank_(static_cast<size_t>(group.rank())) {}

  bool takes(const CollectiveCall&, const std::vector<at::Tensor>& values) const override {
    return !values.empty() && values[0].scalar_type() == at::kDouble;
  }
  at::Tensor zeros(int64_t bytes) const override { return torch::zeros({bytes / 8}, torch::kDouble); }
  std::vector<at::Tensor> run(const CollectiveCall&, const std::vector<at::Tensor>& values,
                              const std::function<void()>& look) override {
    const at::Tensor bytes = values[0].view(torch::kByte);
    for (int i = 0; i < board_.host_sums; ++i) group_.run({.purpose = "to be slow"}, {bytes});
    size_t number = 0;
    {
      absl::MutexLock lock(&board_.mu);
      number = board_.calls[rank_].size();
      board_.calls[rank_].push_back(values[0]);
    }
    while (true) {
      {
        absl::MutexLock lock(&board_.mu);
        if (std::ranges::all_of(board_.calls, [&](const auto& calls) { return calls.size() > number; })) {
          at::Tensor sum = at::zeros_like(values[0]);
          for (const auto& calls : board_.calls) sum.add_(calls[number]);
          return {sum};
        }
      }
      look();
      std::this_thread::yield();
    }
  }
  void abandon() override {}

 private:
  Switchboard& board_;
  Collectives& group_;
  const size_t rank_;
};

class GpusOfAGroup : public testing::Test, public Tasks {
 protected:
  std::vector<Status> together(const std::function<void(TaskGroup&)>& member) {
    start_tasks(kRanks);
    return Tasks::together(kRanks, [&](int rank) { return of_rank(rank, kRanks, like()); }, member);
  }
  TaskGroupOptions like() {
    return {.timeout = timeout_,
            .measure = measure_,
            .meet_gpus = [this](Collectives& group) { return std::make_unique<FakeGpus>(board_, group); },
            .gpus_alone = alone_};
  }
  void one_never_comes() {
    absl::MutexLock lock(&board_.mu);
    board_.calls.emplace_back();
  }
  size_t calls_of(size_t rank) {
    absl::MutexLock lock(&board_.mu);
    return board_.calls[rank].size();
  }

  static constexpr int kRanks = 3;
  Switchboard board_{kRanks};
  std::chrono::milliseconds timeout_ = std::chrono::minutes(5);
  bool measure_ = false, alone_ = false;
};

at::Tensor on_gpu(double value) { return torch::full({2}, value, torch::kDouble); }
at::Tensor on_host(double value) { return torch::full({2}, value, torch::kFloat); }

TEST_F(GpusOfAGroup, SumWhatIsOnThemAndNothingElse) {
  const std::vector<Status> failures = together([&](TaskGroup& group) {
    EXPECT_TRUE(group.run({}, {on_gpu(group.rank())})[0].equal(on_gpu(3)));
    EXPECT_TRUE(group.run({}, {on_host(group.rank())})[0].equal(on_host(3)));
  });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
  EXPECT_EQ(calls_of(0), 1u);
}

TEST_F(GpusOfAGroup, AreAskedInTheOrderOfTheCallsWhoeverRunsThemFirst) {
  constexpr int kCalls = 50;
  const std::vector<Status> failures = together([&](TaskGroup& group) {
    std::latch over(2 * kCalls);
    for (int call = 0; call < kCalls; ++call) {
      for (const bool gpu : {true, false}) {
        group.start({}, {gpu ? on_gpu(call) : on_host(call)}, nullptr,
                    [&, gpu, call](const Status& status, const std::vector<at::Tensor>& sums) {
                      EXPECT_TRUE(status.ok()) << status;
                      EXPECT_TRUE(!status.ok() || sums[0].equal(gpu ? on_gpu(3 * call) : on_host(3 * call)));
                      over.count_down();
                    });
      }
    }
    over.wait();
  });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
  EXPECT_EQ(calls_of(1), static_cast<size_t>(kCalls));
}

TEST_F(GpusOfAGroup, AreNotAskedForSumsThatTheHostIsFasterAt) {
  measure_ = true;
  board_.host_sums = 10;
  LogCapture log;

  const std::vector<Status> failures = together([&](TaskGroup& group) {
    const size_t before = calls_of(static_cast<size_t>(group.rank()));
    EXPECT_GT(before, 0u) << "they were tried";
    EXPECT_TRUE(group.run({}, {on_gpu(group.rank())})[0].equal(on_gpu(3)));
    EXPECT_EQ(calls_of(static_cast<size_t>(group.rank())), before);
    EXPECT_TRUE(group.run({.kind = CollectiveKind::kAllToAll}, {torch::zeros({3}, torch::kDouble)})[0].defined());
    EXPECT_EQ(calls_of(static_cast<size_t>(group.rank())), before + 1) << "what is no sum is theirs";
  });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
  EXPECT_TRUE(log.contains("through the host)"));
}

TEST_F(GpusOfAGroup, AreAskedForAllIfTheyAreToDoItAlone) {
  measure_ = alone_ = true;
  board_.host_sums = 10;

  const std::vector<Status> failures = together([&](TaskGroup& group) {
    EXPECT_EQ(calls_of(static_cast<size_t>(group.rank())), 0u);
    EXPECT_TRUE(group.run({}, {on_gpu(group.rank())})[0].equal(on_gpu(3)));
    EXPECT_EQ(calls_of(static_cast<size_t>(group.rank())), 1u);
  });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
}

TEST(GroupsWithoutGpus, SumThroughTheHostWhatAStreamIsStillMaking) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  Tasks tasks;
  tasks.start_tasks(1);
  const auto group = tasks.join(Tasks::of_rank(0, 1));
  const at::Device device(at::kCUDA, 0);
  const c10::StreamGuard on_its_own(c10::impl::VirtualGuardImpl(at::kCUDA).getStreamFromGlobalPool(device));
  at::Tensor late = torch::ones({4'096, 4'096}, device), given = torch::zeros({1'000}, device);
  for (int i = 0; i < 20; ++i) late = late.mm(late).clamp(-1, 1);
  given.add_(late.select(0, 0).narrow(0, 0, 1'000));

  at::Tensor sum;
  std::latch over(1);
  group->start({}, {given}, nullptr, [&](const Status& status, const std::vector<at::Tensor>& sums) {
    EXPECT_TRUE(status.ok()) << status;
    if (status.ok()) sum = sums[0];
    over.count_down();
  });
  over.wait();

  ASSERT_TRUE(sum.defined());
  EXPECT_TRUE(sum.cpu().equal(torch::ones({1'000})));
}

TEST_F(GpusOfAGroup, SumNothingThatRanksDisagreeOn) {
  const std::vector<Status> failures =
      together([&](TaskGroup& group) { group.run({}, {group.rank() == 1 ? on_gpu(1).to(at::kLong) : on_gpu(1)}); });

  for (const Status& failure : failures) {
    EXPECT_EQ(failure.code(), StatusCode::kInvalidArgument) << failure;
    EXPECT_THAT(failure.message(), AllOf(HasSubstr("rank 1"), HasSubstr("from GPU to GPU")));
  }
  for (size_t rank = 0; rank < kRanks; ++rank) EXPECT_EQ(calls_of(rank), 0u);
}

TEST_F(GpusOfAGroup, AreNotWaitedForWhenARankFails) {
  one_never_comes();
  const std::vector<Status> failures = together([&](TaskGroup& group) {
    if (group.rank() != 2) {
      group.run({}, {on_gpu(1)});
      return;
    }
    Cancellation cancellation;
    const std::jthread cancels([&] {
      while (calls_of(0) + calls_of(1) + calls_of(2) < kRanks) std::this_thread::yield();
      cancellation.cancel(Status(StatusCode::kAborted, "the machine is on fire"));
    });
    group.run({}, {on_gpu(1)}, &cancellation);
  });

  for (const Status& failure : failures) EXPECT_THAT(failure.message(), HasSubstr("the machine is on fire"));
}

TEST_F(GpusOfAGroup, AreWaitedForNoLongerThanTheTimeout) {
  timeout_ = std::chrono::milliseconds(100);
  one_never_comes();
  const std::vector<Status> failures = together([&](TaskGroup& group) { group.run({}, {on_gpu(1)}); });

  EXPECT_THAT(failures, Each(testing::Property(&Status::code, StatusCode::kDeadlineExceeded)));
}

}  // namespace
}  // namespace muster::gpu_ranks_test
