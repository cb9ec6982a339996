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

TEST(Blocking, IsToldApartFromWorkThatOnlyTakesLong) {
  int blocks = 0, takes_long = 0;
  {
    const WhenBlocking lent([&] { ++blocks; });
    about_to_take_long();
    EXPECT_EQ(blocks, 1) << "where nobody tells them apart";
  }
  const WhenBlocking lent([&] { ++blocks; }, [&] { ++takes_long; });

  about_to_take_long();
  about_to_block();

  EXPECT_EQ(takes_long, 1);
  EXPECT_EQ(blocks, 2);
}

TEST(Blocking, OfAnotherThreadIsNobodysBusiness) {
  int told = 0;
  WhenBlocking lent([&] { ++told; });
  std::jthread([] { about_to_block(); }).join();
  EXPECT_EQ(told, 0);
}

TEST(Waiting, IsToldOnceHoweverManyWaitsAreInEachOther) {
  int blocked = 0, begun = 0, ended = 0;
  WhenBlocking lent([&] { ++blocked; });
  WhenWaiting counted([&] { ++begun; }, [&] { ++ended; });
  {
    const Waiting outer;
    const Waiting inner;
    EXPECT_EQ(begun, 1);
    EXPECT_EQ(ended, 0);
  }
  EXPECT_EQ(ended, 1);
  { const Waiting next; }
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(ended, 2);
  EXPECT_GT(blocked, 0);
}

TEST(Waiting, IsNobodysBusinessWhereNobodyAsks) { EXPECT_NO_THROW(Waiting()); }

TEST(LookOut, AsksOnlyWhereThereAreCores) {
  int asked = 0;
  const bool came = look_out(std::chrono::seconds(10), [&] { return ++asked > 0; });

  EXPECT_EQ(came, std::thread::hardware_concurrency() > 4);
  EXPECT_EQ(asked, came ? 1 : 0);
  EXPECT_FALSE(look_out(std::chrono::microseconds(100), [] { return false; }));
}

}  // namespace
}  // namespace muster
