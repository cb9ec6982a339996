#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "muster/base/status.h"

namespace muster {
namespace {

void fail_for_want_of_a_file() { throw not_found("file \"words\" is not there"); }

// As a program does whose output goes to a file, and that catches nothing.
void print_and_fail(const std::string& path) noexcept {
  if (std::freopen(path.c_str(), "w", stdout) == nullptr) std::_Exit(1);
  std::printf("step 1");
  fail_for_want_of_a_file();
}

TEST(UncaughtErrorDeathTest, IsPrintedAndSoIsWhatTheProgramHasPrintedBefore) {
  const std::string path = testing::TempDir() + "uncaught_error_test.txt";

  EXPECT_DEATH(print_and_fail(path), "muster::Error.*\n.*NOT_FOUND: file \"words\" is not there");

  std::ifstream file(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "step 1");
  std::remove(path.c_str());
}

void print_to_nobody_and_fail() noexcept {
  int ends[2];
  if (::pipe(ends) != 0 || ::dup2(ends[1], STDOUT_FILENO) < 0) std::_Exit(1);
  ::close(ends[0]);
  ::close(ends[1]);
  std::printf("step 1");
  fail_for_want_of_a_file();
}

TEST(UncaughtErrorDeathTest, IsPrintedThoughNobodyReadsTheOutputAnyMore) {
  EXPECT_DEATH(print_to_nobody_and_fail(), "NOT_FOUND: file \"words\" is not there");
}

}  // namespace
}  // namespace muster
