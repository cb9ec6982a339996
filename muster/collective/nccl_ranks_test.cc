#include "muster/collective/nccl_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/collective/test_tasks.h"

namespace muster::nccl_ranks_test {
namespace {

using testing::HasSubstr;
using testing_support::Tasks;

GpuOfRank gpu(int64_t number) { return {.has_nccl = true, .has_gpu = true, .first = 1, .last = number}; }

TEST(NcclRanks, NeedAGpuForEachRank) {
  GpuOfRank of_cpu = gpu(0), of_other_build = gpu(2);
  of_cpu.has_gpu = false;
  of_other_build.has_nccl = false;

  const auto why = [](const std::vector<GpuOfRank>& by_rank) {
    return why_no_nccl(by_rank, [](int rank) { return str_cat("rank ", rank); });
  };
  EXPECT_EQ(why({gpu(0), gpu(1), gpu(2)}), "");
  EXPECT_EQ(why({gpu(0), of_cpu}), "rank 1 computes on no GPU");
  EXPECT_EQ(why({gpu(0), gpu(1), of_other_build}), "rank 2 was built without NCCL");
  EXPECT_EQ(why({gpu(3), gpu(1), gpu(3)}), "rank 0 and rank 2 share a GPU");
  std::vector<GpuOfRank> many;
  for (int64_t rank = 0; rank < 129; ++rank) many.push_back(gpu(rank));
  EXPECT_THAT(why(many), HasSubstr("129 ranks"));
}

// Ranks without GPUs, as they are on every machine.
class RanksOfCpus : public testing::Test, public Tasks {
 protected:
  // Of the first one; the others do not care.
  std::vector<Status> together(bool required, const std::function<void(TaskGroup&)>& member) {
    start_tasks(2);
    return Tasks::together(
        2,
        [&](int rank) {
          return of_rank(
              rank, 2,
              {.measure = false,
               .meet_gpus = meet_by_nccl({.device = at::Device(at::kCPU), .required = required && rank == 0})});
        },
        member);
  }
};

TEST_F(RanksOfCpus, DoWithoutNccl) {
  const std::vector<Status> failures = together(/*required=*/false, [](TaskGroup& group) {
    EXPECT_TRUE(group.run({}, {torch::ones({3})})[0].equal(torch::full({3}, 2.0F)));
  });

  for (const Status& failure : failures) EXPECT_TRUE(failure.ok()) << failure;
}

TEST_F(RanksOfCpus, AllHearWhyThereIsNoNcclIfOneNeedsIt) {
  const std::vector<Status> failures =
      together(/*required=*/true, [](TaskGroup&) { ADD_FAILURE() << "the group was formed"; });

  for (const Status& failure : failures) {
    EXPECT_EQ(failure.code(), StatusCode::kFailedPrecondition) << failure;
    EXPECT_THAT(failure.message(),
                HasSubstr(str_cat("NCCL was asked for, but rank 0 (", name(0), " at 127.0.0.1:1, incarnation ",
                                  workers_.at(name(0))->incarnation(), ") computes on no GPU")));
  }
}

// Two ranks cannot share a GPU, but one has the whole of it.
TEST(NcclRanks, SumOnAGpu) {
  if (!missing_for_nccl().empty()) GTEST_SKIP() << missing_for_nccl();
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no GPU";
  Tasks tasks;
  tasks.start_tasks(1);
  const at::Device device(at::kCUDA, 0);
  const TaskGroupOptions options =
      Tasks::of_rank(0, 1, {.meet_gpus = meet_by_nccl({.device = device, .required = true})});
  const auto group = tasks.join(options);
  const auto on_gpu = torch::TensorOptions().device(device);

  const at::Tensor rows = torch::arange(6, on_gpu).view({2, 3});
  const at::Tensor half = torch::full({4}, 0.5, on_gpu.dtype(at::kBFloat16));
  const std::vector<at::Tensor> sums = group->run({}, {rows, half, rows.t(), torch::empty({0}, on_gpu)});
  EXPECT_TRUE(sums[0].equal(rows));
  EXPECT_TRUE(sums[1].equal(half));
  EXPECT_EQ(sums[1].scalar_type(), at::kBFloat16);
  EXPECT_TRUE(sums[2].equal(rows.t()));
  EXPECT_EQ(sums[3].numel(), 0);
  EXPECT_TRUE(sums[0].device() == device && sums[0].data_ptr() != rows.data_ptr());
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kBroadcast,
                                    CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll}) {
    EXPECT_TRUE(group->run({.kind = kind}, {rows})[0].equal(rows)) << static_cast<int64_t>(kind);
  }
  // The next op of the stream sees what was summed, and what was given may be written to.
  at::Tensor given = torch::ones({1 << 20}, on_gpu);
  std::vector<at::Tensor> results;
  absl::Mutex mu;
  bool over = false;
  group->start({}, {given}, nullptr, [&](const Status& status, std::vector<at::Tensor> made) {
    EXPECT_TRUE(status.ok()) << status;
    absl::MutexLock lock(&mu);
    results = std::move(made);
    over = true;
  });
  given.zero_();
  absl::MutexLock lock(&mu);
  mu.Await(absl::Condition(&over));
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].sum().item<float>(), 1 << 20);
}

}  // namespace
}  // namespace muster::nccl_ranks_test
