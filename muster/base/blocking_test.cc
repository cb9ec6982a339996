#include "muster/base/blocking.h"

#include <gtest/gtest.h>

#include <thread>

namespace muster {
namespace {

TEST(Blocking, IsToldToWhoeverLentTheThread) {
  int told = 0;
  {
    WhenBlocking lent([&] { ++told; });
    about_to_block();
    about_to_block();
  }
  EXPECT_EQ(told, 2);
  about_to_block();
  EXPECT_EQ(told, 2);
}

TEST(Blocking, OfAnotherThreadIsNobodysBusiness) {
  int told = 0;
  WhenBlocking lent([&] { ++told; });
  std::jthread([] { about_to_block(); }).join();
  EXPECT_EQ(told, 0);
}

}  // namespace
}  // namespace muster
