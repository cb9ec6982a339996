#include "muster/base/terminal_line.h"

#include <gtest/gtest.h>

#include <sstream>

#include "muster/base/progress.h"

namespace muster::terminal_line_test {
namespace {

constexpr std::string_view kErase = "\r\033[K";

TEST(TerminalLine, OfABarIsTakenByTheNextLineUntilTheBarIsDrawnAgain) {
  std::ostringstream out;
  auto now = std::chrono::steady_clock::time_point();
  ProgressBar bar({.title = "train", .total = 4, .out = &out, .tty = true, .width = 80, .now = [&] { return now; }});
  EXPECT_EQ(over_open_line(), "") << "nothing is drawn yet";

  bar.update(1);
  EXPECT_EQ(over_open_line(), kErase);
  EXPECT_EQ(over_open_line(), "") << "the bar is gone";

  now += std::chrono::seconds(1);
  bar.update(2);
  EXPECT_EQ(over_open_line(), kErase);

  now += std::chrono::seconds(1);
  bar.update(3);
  bar.finish();
  EXPECT_EQ(over_open_line(), "") << "what the bar has said stays";
}

TEST(TerminalLine, OfABarThatEndsEarlyStays) {
  std::ostringstream out;
  {
    ProgressBar bar({.title = "train", .total = 4, .out = &out, .tty = true, .width = 80});
    bar.update(1);
  }

  EXPECT_EQ(over_open_line(), "");
}

TEST(TerminalLine, IsNeverOpenWhereThereIsNoTerminal) {
  std::ostringstream out;
  ProgressBar bar({.title = "train", .total = 4, .out = &out, .tty = false});

  bar.update(1);

  EXPECT_EQ(over_open_line(), "");
}

}  // namespace
}  // namespace muster::terminal_line_test
