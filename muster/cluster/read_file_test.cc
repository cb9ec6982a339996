#include "muster/cluster/read_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::muster::testing_support::ScopedDirectory;
using ::testing::HasSubstr;

TEST(ReadFile, GivesEveryByte) {
  ScopedDirectory directory;
  const std::string bytes = std::string("a\0b\n", 4) + std::string(100'000, 'x');

  EXPECT_EQ(read_file(directory.write("file", bytes)), bytes);
  EXPECT_EQ(read_file(directory.write("empty", "")), "");
}

TEST(ReadFile, NamesTheFileThatIsMissing) {
  Status status = caught([] { (void)read_file("/no/such/file"); });

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("\"/no/such/file\": No such file"));
}

TEST(ReadFile, RefusesADirectory) {
  ScopedDirectory directory;

  Status status = caught([&] { (void)read_file(directory.path()); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("directory"));
}

TEST(ReadFile, StopsAtAFileThatNeverEnds) {
  EXPECT_EQ(caught([] { (void)read_file("/dev/zero"); }).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster
