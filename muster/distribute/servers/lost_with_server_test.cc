#include "muster/distribute/servers/lost_with_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/runtime/variables/no_value.h"

namespace muster {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kPs = "/job:ps/replica:0/task:1";

TEST(LostWithServer, SaysSoOfAVariableThatAParameterServerHasNoValueOf) {
  const Status failure = no_value(StatusCode::kFailedPrecondition, "strategy-12//w", "is not initialized").from(kPs);

  const Status lost = lost_with_server(failure);

  EXPECT_EQ(lost.code(), StatusCode::kUnavailable);
  EXPECT_EQ(lost.task(), kPs);
  EXPECT_THAT(lost.message(), AllOf(HasSubstr("variable \"w\" was lost with /job:ps/replica:0/task:1"),
                                    HasSubstr("Checkpoints::restore()"), HasSubstr("assign()")));
}

TEST(LostWithServer, LeavesAllElseAsItIs) {
  const Status of_worker =
      no_value(StatusCode::kFailedPrecondition, "w", "is not initialized").from("/job:worker/replica:0/task:0");
  const Status other(StatusCode::kFailedPrecondition, "is not initialized", kPs);

  EXPECT_EQ(lost_with_server(of_worker), of_worker);
  EXPECT_EQ(lost_with_server(other), other);
}

}  // namespace
}  // namespace muster
