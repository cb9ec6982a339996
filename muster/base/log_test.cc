#include "muster/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

TEST(LogCapture, CollectsLinesWithTheirLevel) {
  const LogCapture capture;

  MUSTER_LOG(debug) << "looked";
  MUSTER_LOG(info) << "joined " << 3 << " tasks";
  MUSTER_LOG(warning) << "slow";
  MUSTER_LOG(error) << "lost";

  EXPECT_THAT(capture.lines(),
              ElementsAre(LogLine{LogLevel::kDebug, "looked"}, LogLine{LogLevel::kInfo, "joined 3 tasks"},
                          LogLine{LogLevel::kWarning, "slow"}, LogLine{LogLevel::kError, "lost"}));
  EXPECT_TRUE(capture.contains("3 tasks"));
  EXPECT_FALSE(capture.contains("4 tasks"));
}

TEST(LogCapture, CollectsTheLinesOfAllThreads) {
  const LogCapture capture;

  {
    std::jthread first([] { MUSTER_LOG(info) << "first"; });
    std::jthread second([] { MUSTER_LOG(info) << "second"; });
  }

  EXPECT_THAT(capture.lines(), SizeIs(2));
}

TEST(LogCapture, GivesALineToTheInnermost) {
  const LogCapture outer;

  {
    const LogCapture inner;
    MUSTER_LOG(info) << "inside";
    EXPECT_TRUE(inner.contains("inside"));
  }
  MUSTER_LOG(info) << "after";

  EXPECT_THAT(outer.lines(), ElementsAre(LogLine{LogLevel::kInfo, "after"}));
}

TEST(Log, PrintsOneLineToStderr) {
  testing::internal::CaptureStderr();

  MUSTER_LOG(error) << "lost /job:ps/task:1";

  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("lost /job:ps/task:1\n"));
}

TEST(Log, HidesWhatNobodyNeedRead) {
  if (std::getenv("MUSTER_LOG") != nullptr) GTEST_SKIP() << "somebody wants it otherwise";
  testing::internal::CaptureStderr();

  MUSTER_LOG(debug) << "all 3 are here";
  MUSTER_LOG(info) << "one is back";

  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, testing::Not(testing::HasSubstr("all 3 are here")));
  EXPECT_THAT(printed, testing::HasSubstr("one is back\n"));
}

TEST(Log, FormatsLetterTimeAndText) {
  const LogLine line{LogLevel::kWarning, "slow"};

  EXPECT_EQ(log_internal::format(line, "14:03:07.000001", false), "W 14:03:07.000001 slow");
  EXPECT_EQ(log_internal::format(line, "14:03:07.000001", true), "\033[33mW\033[0m 14:03:07.000001 slow");
  EXPECT_EQ(log_internal::format({LogLevel::kDebug, "looked"}, "14:03:07.000001", true),
            "\033[90mD\033[0m 14:03:07.000001 looked");
  EXPECT_EQ(log_internal::format({LogLevel::kError, "lost"}, "14:03:07.000001", true),
            "\033[31mE\033[0m 14:03:07.000001 lost");
}

TEST(Log, ReadsTheThresholdFromItsSetting) {
  EXPECT_EQ(log_internal::threshold(nullptr), 0);
  EXPECT_EQ(log_internal::threshold("debug"), -1);
  EXPECT_EQ(log_internal::threshold("warning"), 1);
  EXPECT_EQ(log_internal::threshold("error"), 2);
  EXPECT_EQ(log_internal::threshold("none"), 3);
}

TEST(Log, SaysThatItsSettingIsNoneThatItKnows) {
  const LogCapture log;

  for (const char* known : {"debug", "info", "warning", "error", "none", ""}) log_internal::threshold(known);
  EXPECT_THAT(log.lines(), testing::IsEmpty());
  EXPECT_EQ(log_internal::threshold("nonsense"), 0);

  EXPECT_THAT(log.lines(), ElementsAre(LogLine{LogLevel::kWarning,
                                               "MUSTER_LOG is \"nonsense\", expected debug, info, warning, error or "
                                               "none; taken as info"}));
}

}  // namespace
}  // namespace muster
