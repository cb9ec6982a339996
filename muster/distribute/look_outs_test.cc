#include "muster/distribute/look_outs.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

using std::chrono::microseconds;

// Waits for results that are there so long after it has begun to wait, by a clock that each look at one moves on.
class LookOutsTest : public ::testing::Test {
 protected:
  // Returns whether it was looked out for.
  bool wait_for_one(microseconds takes) {
    const LookOuts::Time ready = now_ + takes;
    bool looked = false, slept = false;
    look_outs_.wait(
        [&] {
          looked = true;
          now_ += microseconds(1);
          return now_ >= ready;
        },
        [&] {
          slept = true;
          now_ = std::max(now_, ready);
        });
    EXPECT_GE(now_, ready);
    EXPECT_TRUE(looked || slept);
    return looked;
  }

  LookOuts::Time now_{};
  LookOuts look_outs_{microseconds(400), [this] { return now_; }};
};

TEST_F(LookOutsTest, AreForResultsThatComeWithinAMoment) {
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(wait_for_one(microseconds(100)));
}

TEST_F(LookOutsTest, AreRareWhereResultsTakeLongerHoweverLittle) {
  for (const microseconds takes : {microseconds(500), microseconds(800), microseconds(100'000)}) {
    int looked = 0;
    for (int i = 0; i < 1'000; ++i) looked += wait_for_one(takes) ? 1 : 0;
    EXPECT_LT(looked, 100) << takes.count() << " us";
    EXPECT_GT(looked, 10) << "now and then, to see: " << takes.count() << " us";
  }
}

TEST_F(LookOutsTest, ComeBackWithTheFirstResultThatWouldHaveBeenSeen) {
  for (int i = 0; i < 100; ++i) wait_for_one(microseconds(1'000));
  wait_for_one(microseconds(100));

  EXPECT_TRUE(wait_for_one(microseconds(100)));
}

}  // namespace
}  // namespace muster
