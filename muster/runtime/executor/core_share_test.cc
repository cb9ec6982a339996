#include "muster/runtime/executor/core_share.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <thread>

namespace muster {
namespace {

int of_a_new_thread() {
  int count = 0;
  std::thread([&] { count = at::get_num_threads(); }).join();
  return count;
}

TEST(CoreShare, IsOfOneThreadAlone) {
  const int here = at::get_num_threads(), of_others = of_a_new_thread();
  int there = 0;

  std::thread([&] {
    use_cores(3);
    there = at::get_num_threads();
  }).join();

  EXPECT_EQ(there, 3);
  EXPECT_EQ(at::get_num_threads(), here);
  EXPECT_EQ(of_a_new_thread(), of_others);
}

}  // namespace
}  // namespace muster
