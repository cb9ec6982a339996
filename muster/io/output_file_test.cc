#include "muster/io/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

#include "muster/io/mapped_file.h"
#include "muster/io/test_files.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::muster::testing_support::names_in;
using ::muster::testing_support::read_file;
using ::muster::testing_support::ScopedDirectory;
using ::muster::testing_support::write_file;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::span<const std::byte> file_bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(OutputFile, HoldsWhatWasWrittenOnceItIsFinished) {
  ScopedDirectory directory;

  OutputFile file(directory.path("a"));
  file.write(file_bytes("one "));
  file.write(file_bytes(""));
  file.write(file_bytes("two"));
  file.finish();

  EXPECT_EQ(read_file(directory.path("a")), "one two");
}

TEST(OutputFile, IsGoneWhenItIsNotFinished) {
  ScopedDirectory directory;

  { OutputFile(directory.path("a")).write(file_bytes("half")); }

  EXPECT_THAT(names_in(directory.path()), IsEmpty());
}

TEST(OutputFile, NeverOverwritesAFile) {
  ScopedDirectory directory;
  write_file(directory.path("a"), "mine");

  Status status = caught([&] { OutputFile file(directory.path("a")); });

  EXPECT_EQ(status.code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(read_file(directory.path("a")), "mine");
}

TEST(OutputFile, NamesFileAndCauseOfAFullDisk) {
  Status status = caught([] { OutputFile("/dev/full").write(file_bytes("x")); });

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("\"/dev/full\": write: No space left on device"));
  EXPECT_TRUE(std::filesystem::exists("/dev/full"));
}

TEST(OutputFile, NamesTheDirectoryThatIsMissing) {
  Status status = caught([] { OutputFile("/no/such/file"); });

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("\"/no/such/file\": create: No such file"));
}

TEST(MappedFile, GivesTheBytesAlsoAfterTheFileIsRemoved) {
  ScopedDirectory directory;
  write_file(directory.path("a"), "text");
  write_file(directory.path("empty"), "");

  MappedFile file(directory.path("a"));
  std::filesystem::remove(file.path());

  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()), "text");
  EXPECT_THAT(MappedFile(directory.path("empty")).bytes(), IsEmpty());
}

TEST(MappedFile, RefusesWhatIsNoPlainFile) {
  ScopedDirectory directory;

  EXPECT_EQ(caught([&] { MappedFile file(directory.path()); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([&] { MappedFile file("/dev/zero"); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([&] { MappedFile file(directory.path("none")); }).code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace muster
