#include "muster/runtime/memory/small_memory.h"

#include <ATen/core/Tensor.h>
#include <c10/core/impl/alloc_cpu.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <thread>

#include "muster/runtime/memory/memory_pool.h"

namespace muster::small_memory_test {

#ifndef __SANITIZE_ADDRESS__  // with which nothing is kept

TEST(SmallMemory, IsUsedAgainByTheThreadThatFreedIt) {
  MemoryPool::Use use(true);
  const void* memory = torch::ones({4}).data_ptr();

  EXPECT_EQ(torch::ones({7}).data_ptr(), memory);  // as many bytes, rounded
}

TEST(SmallMemory, IsLeftAloneOutsideOfPrograms) {
  at::Tensor outside = torch::ones({4});
  const void* memory = outside.data_ptr();
  outside.reset();
  MemoryPool::Use use(true);

  EXPECT_NE(SmallMemory::take(128), static_cast<const char*>(memory) - 64);
}

TEST(SmallMemory, IsKeptInSmallNumbersAndOnlyIfItIsSmall) {
  std::thread([] {
    for (size_t i = 0; i < SmallMemory::kMostOfASize; ++i) EXPECT_TRUE(SmallMemory::keep(c10::alloc_cpu(128), 128));
    void* more = c10::alloc_cpu(4096);
    EXPECT_FALSE(SmallMemory::keep(more, 128));
    EXPECT_FALSE(SmallMemory::keep(more, 4096));
    EXPECT_FALSE(SmallMemory::keep(more, 100));
    EXPECT_EQ(SmallMemory::take(4096), nullptr);
    EXPECT_EQ(SmallMemory::take(192), nullptr);
    c10::free_cpu(more);
  }).join();

  EXPECT_EQ(SmallMemory::take(128 + 64 * 3), nullptr);  // another thread's
}

#endif

}  // namespace muster::small_memory_test
