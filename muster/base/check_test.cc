#include "muster/base/check.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(Check, DoesNothingWhenTheConditionHolds) {
  int evaluated = 0;

  MUSTER_CHECK(++evaluated == 1) << "never built: " << ++evaluated;

  EXPECT_EQ(evaluated, 1);
}

TEST(Check, BindsLikeAStatement) {
  bool reached_else = false;

  if (false)
    MUSTER_CHECK(false);
  else
    reached_else = true;

  EXPECT_TRUE(reached_else);
}

TEST(CheckDeathTest, AbortsWithThePlaceTheConditionAndTheWords) {
  EXPECT_DEATH(MUSTER_CHECK(1 > 2) << "in step " << 7, "check_test.cc:[0-9]+: MUSTER_CHECK.1 > 2. failed.*in step 7");
}

}  // namespace
}  // namespace muster
