#include "muster/runtime/worker/restart.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(Restart, IsKnownByItsErrorAndByNoOtherOfTheSameCode) {
  const Status status = restarted("/job:ps/task:1", "was restarted");

  EXPECT_TRUE(is_restart(status));
  EXPECT_EQ(status.code(), StatusCode::kAborted);
  EXPECT_EQ(status.task(), "/job:ps/task:1");
  EXPECT_FALSE(is_restart(Status(StatusCode::kAborted, "was restarted", "/job:ps/task:1")));
  EXPECT_FALSE(is_restart(Status(StatusCode::kUnavailable, "", "", status.detail())));
  EXPECT_FALSE(is_restart(Status()));
}

TEST(Restart, IsStillKnownWhenATaskHasPassedItOn) {
  EXPECT_TRUE(is_restart(restarted("", "was restarted").from("/job:worker/task:0")));
}

}  // namespace
}  // namespace muster
