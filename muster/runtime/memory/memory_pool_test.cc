#include "muster/runtime/memory/memory_pool.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <latch>
#include <thread>

#include "muster/base/status.h"

namespace muster {
namespace {

TEST(MemoryPool, UsesABlockAgainForATensorOfItsSize) {
  MemoryPool& pool = MemoryPool::instance();
  MemoryPool::Use use(true);
  const void* first = torch::empty({100'000}).data_ptr();
  const int64_t fresh = pool.usage().fresh;

  const void* second = torch::empty({100'000}).data_ptr();

  EXPECT_EQ(first, second);
  EXPECT_EQ(pool.usage().fresh, fresh);
}

TEST(MemoryPool, NeverHoldsMuchMoreThanWasOnceInUse) {
  MemoryPool& pool = MemoryPool::instance();
  MemoryPool::Use use(true);

  for (int64_t size = 500'000; size < 800'000; size += 10'000) {
    at::Tensor a = torch::empty({size}), b = torch::empty({size});
    EXPECT_LE(pool.usage().live + pool.usage().kept, pool.usage().peak + MemoryPool::kSpare);
  }

  EXPECT_LE(pool.usage().kept, pool.usage().peak + MemoryPool::kSpare);
}

TEST(MemoryPool, HasBlocksForStepsWhoseTensorsDiffer) {
  MemoryPool& pool = MemoryPool::instance();
  pool.let_go();
  MemoryPool::Use use(true);
  auto steps = [] {
    for (int64_t size : {100'000, 150'000, 200'000}) static_cast<void>(torch::empty({size}));
  };
  steps();
  const int64_t fresh = pool.usage().fresh;

  for (int i = 0; i < 10; ++i) steps();

  EXPECT_EQ(pool.usage().fresh, fresh);
}

#ifndef __SANITIZE_ADDRESS__  // where a block is as large as its tensor
TEST(MemoryPool, UsesABlockAgainForATensorOfAboutItsSize) {
  MemoryPool& pool = MemoryPool::instance();
  MemoryPool::Use use(true);
  static_cast<void>(torch::empty({33'000}));
  const int64_t fresh = pool.usage().fresh;

  for (int64_t size : {34'000, 33'500, 36'000}) static_cast<void>(torch::empty({size}));

  EXPECT_EQ(pool.usage().fresh, fresh);
}

// The process may have what its owner has said, in tensors: blocks larger than these are the pool's own idea.
TEST(MemoryPool, LetsRunsHaveAllThatTheyMayHaveInTensorsAndLittleBeyondIt) {
  constexpr int64_t kBytes = (9 << 16) + 64, kTensors = 40;  // whose blocks are an eighth of a MiB larger
  MemoryPool& pool = MemoryPool::instance();
  pool.let_go();
  const MemoryPool::Usage before = pool.usage();
  const int64_t most = static_cast<int64_t>(before.tensors) + kTensors * kBytes;
  pool.limit_to(most);
  MemoryPool::Use use(true);
  std::vector<at::Tensor> made;

  EXPECT_NO_THROW({
    for (int i = 0; i < kTensors; ++i) made.push_back(torch::empty({kBytes / 4}));
  });
  EXPECT_ANY_THROW(torch::empty({kBytes / 4}));

  EXPECT_EQ(pool.usage().tensors, static_cast<size_t>(most));
  EXPECT_LE(pool.usage().live, static_cast<size_t>(most + most / 16));
  made.clear();
  EXPECT_EQ(pool.usage().tensors, before.tensors);
  pool.limit_to(usual_memory());
}

TEST(MemoryPool, CountsForABudgetWhatTheTensorHasAndNotItsBlock) {
  MemoryPool::Budget budget(1 << 20);
  const MemoryPool::Use use(MemoryPool::Mode{.pooled = true, .budget = &budget});

  at::Tensor tensor = torch::empty({33'000});

  EXPECT_EQ(budget.used(), (33'000 * 4 + 63) / 64 * 64);
  tensor.reset();
  EXPECT_EQ(budget.used(), 0);
}
#endif

TEST(MemoryPool, LetsGoOfWhatNobodyUses) {
  MemoryPool& pool = MemoryPool::instance();
  MemoryPool::Use use(true);
  const at::Tensor held = torch::ones({50'000});
  for (int64_t size = 50'000; size < 80'000; size += 10'000) torch::empty({size});

  pool.let_go();

  EXPECT_EQ(pool.usage().kept, 0u);
  EXPECT_EQ(pool.usage().peak, pool.usage().live);
  EXPECT_EQ(held.sum().item<float>(), 50'000);
}

TEST(MemoryPool, LeavesTensorsOutsideOfProgramsToTheSystem) {
  MemoryPool& pool = MemoryPool::instance();
  const MemoryPool::Usage before = pool.usage();

  at::Tensor tensor = torch::ones({1'000'000});

  EXPECT_EQ(pool.usage().live, before.live);
  EXPECT_EQ(tensor.sum().item<float>(), 1'000'000);
}

TEST(MemoryPool, TakesBackATensorThatAnotherThreadFrees) {
  MemoryPool& pool = MemoryPool::instance();
  const size_t live = pool.usage().live;
  at::Tensor tensor;
  {
    MemoryPool::Use use(true);
    tensor = torch::ones({50'000});
  }

  std::jthread([moved = std::move(tensor)]() mutable { moved.reset(); }).join();

  EXPECT_EQ(pool.usage().live, live);
}

TEST(MemoryPool, AlignsAndResizesLikeLibtorchsOwn) {
  MemoryPool::instance();
  MemoryPool::Use use(true);
  at::Tensor tensor = torch::ones({10});

  tensor.resize_({100'000});
  at::Tensor nothing = torch::empty({0});

  EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 64, 0u);
  EXPECT_EQ(tensor[9].item<float>(), 1);
  EXPECT_EQ(nothing.numel(), 0);
}

TEST(MemoryPool, DoesNotCountWhatCouldNotBeHad) {
  MemoryPool& pool = MemoryPool::instance();
  MemoryPool::Use use(true);
  const MemoryPool::Usage before = pool.usage();

  EXPECT_ANY_THROW(torch::empty({int64_t{1} << 50}));

  EXPECT_EQ(pool.usage().peak, before.peak);
  EXPECT_EQ(pool.usage().live, before.live);
}

TEST(MemoryPool, ForgetsTheSizesOfBlocksThatItNoLongerHas) {
  MemoryPool& pool = MemoryPool::instance();
  MemoryPool::Use use(true);
  const size_t before = pool.usage().sizes;

  for (int64_t size = 0; size < 2'000; ++size) static_cast<void>(torch::empty({200'000 + 64 * size}));

  // So many blocks of their sizes at most have room in what may be held.
  EXPECT_LE(pool.usage().sizes, before + (pool.usage().peak + MemoryPool::kSpare) / 800'000 + 1);
}

#ifndef __SANITIZE_ADDRESS__  // whose malloc keeps what is freed
TEST(MemoryPool, GivesBackToTheSystemWhatAnotherThreadHasFreed) {
  constexpr int kTensors = 64;
  constexpr int64_t kBytes = 4 << 20;
  const int64_t before = resident_memory();
  std::vector<at::Tensor> made;
  std::latch filled(1), freed(1);
  const std::jthread other([&] {
    MemoryPool::Use use(true);
    for (int i = 0; i < kTensors; ++i) made.push_back(torch::ones({kBytes / 4}));
    filled.count_down();
    freed.wait();
  });
  filled.wait();
  EXPECT_GE(resident_memory(), before + kTensors * kBytes);

  made.clear();
  MemoryPool::instance().let_go();

  EXPECT_LT(resident_memory(), before + kTensors * kBytes / 4);
  freed.count_down();
}
#endif

TEST(MemoryPool, AsksTheBudgetBeforeTheSystem) {
  MemoryPool& pool = MemoryPool::instance();
  MemoryPool::Budget budget(1 << 20);
  MemoryPool::Use use({.pooled = true, .budget = &budget});
  const MemoryPool::Usage before = pool.usage();
  at::Tensor half = torch::empty({128 << 10});

  EXPECT_EQ(budget.used(), 512 << 10);
  EXPECT_THROW(torch::empty({int64_t{1} << 38}), Error);
  EXPECT_THROW(torch::empty({200 << 10}), Error);
  EXPECT_EQ(budget.used(), 512 << 10);
  EXPECT_EQ(pool.usage().peak, std::max(before.peak, before.live + (512 << 10))) << "what was refused was never in use";
  half.reset();
  EXPECT_EQ(budget.used(), 0);
}

TEST(MemoryPool, CountsSmallTensorsAndThoseOutsideOfThePool) {
  MemoryPool::Budget budget(1 << 20);
  MemoryPool::Use use({.pooled = false, .budget = &budget});

  std::vector<at::Tensor> small;
  EXPECT_THROW(
      {
        for (int i = 0; i < 10'000; ++i) small.push_back(torch::empty({256}));
      },
      Error);
  EXPECT_EQ(small.size(), 1024u);
}

TEST(MemoryPool, CountsNoTensorThatAnotherThreadHasFreed) {
  MemoryPool::Budget budget(1 << 20);
  MemoryPool::Use use({.pooled = true, .budget = &budget});
  at::Tensor sent = torch::empty({200'000});

  std::jthread([&] { sent.reset(); }).join();

  EXPECT_EQ(budget.used(), 0);
}

TEST(MemoryPool, LetsATensorOutliveItsBudget) {
  at::Tensor left;
  {
    MemoryPool::Budget budget(1 << 20);
    MemoryPool::Use use({.pooled = true, .budget = &budget});
    left = torch::ones({100'000});
  }
  MemoryPool::Budget next(1 << 20);
  MemoryPool::Use use({.pooled = true, .budget = &next});

  left.reset();

  EXPECT_EQ(next.used(), 0);
}

}  // namespace
}  // namespace muster
