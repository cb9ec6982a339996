#include "muster/base/progress.h"

#include <absl/strings/str_split.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "muster/base/terminal_line.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ProgressBarTest : public testing::Test {
 protected:
  ProgressOptions options(bool tty, int64_t total, int width = 120) {
    return {.title = "train", .total = total, .out = &out, .tty = tty, .width = width, .now = [this] { return now; }};
  }

  std::vector<std::string> lines() const { return absl::StrSplit(out.str(), '\n', absl::SkipEmpty()); }
  std::vector<std::string> redraws() const { return absl::StrSplit(out.str(), '\r', absl::SkipEmpty()); }

  std::ostringstream out;
  std::chrono::steady_clock::time_point now;
};

TEST_F(ProgressBarTest, PrintsALineForEveryTenthWhenThereIsNoTerminal) {
  ProgressBar bar(options(false, 1000));

  for (int done = 1; done <= 1000; ++done) {
    now += milliseconds(10);
    bar.update(done, "loss 0.5");
  }

  ASSERT_THAT(lines(), SizeIs(10));
  EXPECT_EQ(lines().front(), "train  10% 100/1000  100/s  0:09 left  loss 0.5");
  EXPECT_EQ(lines().back(), "train  1000/1000 in 10.0 s (100/s)  loss 0.5");
}

TEST_F(ProgressBarTest, SkipsTenthsThatWentByInOneUpdate) {
  ProgressBar bar(options(false, 10));

  bar.update(5);
  bar.update(5);
  bar.update(6);

  EXPECT_THAT(lines(), ElementsAre("train  50% 5/10", "train  60% 6/10"));
}

TEST_F(ProgressBarTest, RedrawsAtMostTwentyTimesASecondOnATerminal) {
  ProgressBar bar(options(true, 10'000));

  for (int done = 0; done < 1000; ++done) {
    bar.update(done);
    now += milliseconds(1);
  }

  EXPECT_THAT(redraws(), SizeIs(20));
}

TEST_F(ProgressBarTest, DrawsPartRateTimeLeftAndNoteOnATerminal) {
  ProgressBar bar(options(true, 4));
  now += milliseconds(500);

  bar.update(1, "loss 0.5");

  EXPECT_EQ(out.str(), "\rtrain  25% [======>                 ] 1/4  2.00/s  0:02 left  loss 0.5\033[K");
}

TEST_F(ProgressBarTest, FitsTheTerminal) {
  ProgressBar bar(options(true, 4, 20));

  bar.update(1, "a note that does not fit");

  EXPECT_EQ(out.str(), "\rtrain  25% [=>  ] 1\033[K");
}

TEST_F(ProgressBarTest, ShortensTheBarBeforeTheNoteAndThenLeavesOutItsLastParts) {
  const auto drawn = [&](int width) {
    out.str("");
    ProgressBar(options(true, 4, width)).update(1, "loss 0.5  accuracy 0.91");
    return out.str().substr(1, out.str().find('\033') - 1);
  };

  EXPECT_EQ(drawn(51), "train  25% [==>     ] 1/4  loss 0.5  accuracy 0.91");
  EXPECT_EQ(drawn(47), "train  25% [=>  ] 1/4  loss 0.5  accuracy 0.91");
  EXPECT_EQ(drawn(46), "train  25% [====>             ] 1/4  loss 0.5");
}

TEST_F(ProgressBarTest, IsALineWithoutABarWhereNobodyKnowsTheTotal) {
  ProgressOptions unknown = options(true, 0);
  unknown.total.reset();
  ProgressBar bar(std::move(unknown));
  now += milliseconds(2000);

  bar.update(10, "loss 0.5");
  bar.finish();

  EXPECT_EQ(out.str(), "\rtrain  10  5.00/s  0:02  loss 0.5\033[K\r\033[Ktrain  10 in 2.0 s (5.00/s)\n");
}

TEST_F(ProgressBarTest, LeavesItsRateToTheNoteIfItIsToldSo) {
  ProgressOptions without = options(true, 4);
  without.rate = false;
  ProgressBar bar(std::move(without));
  now += milliseconds(500);

  bar.update(1, "64 examples/s");

  EXPECT_EQ(out.str(), "\rtrain  25% [======>                 ] 1/4  0:02 left  64 examples/s\033[K");
}

TEST_F(ProgressBarTest, TakesOffTheTerminalWhatIsDrawnAndNothingElse) {
  ProgressBar bar(options(true, 4));

  bar.erase();
  EXPECT_EQ(out.str(), "");
  bar.update(1);
  out.str("");
  bar.erase();
  EXPECT_EQ(over_open_line(), "") << "what is logged now begins a line of its own";
  bar.erase();

  EXPECT_EQ(out.str(), "\r\033[K");
}

TEST_F(ProgressBarTest, FinishesOnceWithItsOwnLine) {
  {
    ProgressBar bar(options(true, 20'000));
    now += milliseconds(1000);
    bar.update(20'000, "accuracy 0.98");
    bar.finish();
    bar.update(3);
  }

  EXPECT_EQ(out.str(), "\r\033[Ktrain  20000/20000 in 1.0 s (20.0k/s)  accuracy 0.98\n");
}

TEST_F(ProgressBarTest, LeavesTheTerminalOnAFreshLineWhenTheLoopEndsEarly) {
  {
    ProgressBar bar(options(true, 4));
    bar.update(1);
  }

  EXPECT_EQ(out.str().back(), '\n');
}

TEST_F(ProgressBarTest, IsDoneAtOnceWhenThereIsNothingToDo) {
  ProgressBar bar(options(false, 0));

  bar.update(0);

  EXPECT_THAT(lines(), ElementsAre("train  0/0 in 0.0 s"));
}

TEST_F(ProgressBarTest, ShowsHoursWhenThereAreSome) {
  ProgressBar bar(options(false, 10));
  now += std::chrono::hours(1);

  bar.update(5);

  EXPECT_THAT(out.str(), HasSubstr("1:00:00 left"));
}

}  // namespace
}  // namespace muster
