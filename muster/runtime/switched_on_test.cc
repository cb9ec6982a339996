#include "muster/runtime/switched_on.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "muster/base/log.h"

namespace muster {
namespace {

constexpr const char* kVariable = "MUSTER_SWITCH_OF_A_TEST";

bool switched_on_by(const char* value) {
  setenv(kVariable, value, /*overwrite=*/1);
  const bool on = switched_on(kVariable);
  unsetenv(kVariable);
  return on;
}

TEST(SwitchedOn, IsOffWhereTheEnvironmentSaysSo) {
  const LogCapture log;

  EXPECT_FALSE(switched_on_by("off"));
  EXPECT_TRUE(switched_on_by("on"));
  EXPECT_TRUE(switched_on_by(""));
  EXPECT_TRUE(switched_on(kVariable)) << "nobody has set it";
  EXPECT_THAT(log.lines(), testing::IsEmpty());
}

TEST(SwitchedOn, SaysWhatItDoesNotUnderstand) {
  const LogCapture log;

  EXPECT_TRUE(switched_on_by("0"));

  EXPECT_THAT(log.lines(),
              testing::ElementsAre(
                  LogLine{LogLevel::kWarning, "MUSTER_SWITCH_OF_A_TEST is \"0\", expected on or off; taken as on"}));
}

}  // namespace
}  // namespace muster
