#include "muster/io/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <string_view>

#include "muster/io/disk.h"
#include "muster/io/input_file.h"
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

#ifdef __GLIBC__
// A heap that keeps what is freed (as that of a server does) keeps another two buffers for every thread that has saved.
TEST(OutputFile, TakesItsBuffersFromTheSystemAndNotFromTheHeap) {
  ScopedDirectory directory;
  const std::string text(2 * OutputFile::kBufferBytes, 'x');
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  const size_t before = ::mallinfo2().arena;

  OutputFile file(directory.path("a"));
  file.write(file_bytes(text));

  EXPECT_LT(::mallinfo2().arena, before + OutputFile::kBufferBytes);
}
#endif

std::string text_of_bytes(size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 % 251);
  return text;
}

void write_in_parts(OutputFile& file, std::string_view text) {
  constexpr size_t kPart = 999'999;
  for (size_t at = 0; at < text.size(); at += kPart) file.write(file_bytes(text.substr(at, kPart)));
  file.finish();
}

TEST(OutputFile, HoldsWhatIsLargerThanItsBuffers) {
  ScopedDirectory directory;
  const std::string text = text_of_bytes(3 * OutputFile::kBufferBytes + 4097);

  OutputFile past(directory.path("past")), through(directory.path("through"), OutputFile::Cache::kThrough);
  write_in_parts(past, text);
  write_in_parts(through, text);

  EXPECT_TRUE(read_file(past.path()) == text);
  EXPECT_TRUE(read_file(through.path()) == text);
}

TEST(OutputFile, IsStillInMemoryIfItWentThroughTheCache) {
  const std::string path = str_cat(testing::TempDir(), "muster_through_", ::getpid());  // most likely on a disk
  OutputFile written(path, OutputFile::Cache::kThrough);
  write_in_parts(written, text_of_bytes(OutputFile::kBufferBytes));
  const int descriptor = disk::open(path, O_RDONLY);
  std::filesystem::remove(path);
  std::string page(4096, '\0');

  const ssize_t got = disk::pread_cached(descriptor, {page.data(), page.size()}, 1 << 20, path);

  const int error = errno;
  disk::close(descriptor, path);
  if (got < 0 && error == EOPNOTSUPP) GTEST_SKIP() << "a file system whose cache cannot be asked";
  EXPECT_EQ(got, 4096);
}

TEST(OutputFile, LargerThanTheProcessMayWriteIsAnErrorAndNotItsEnd) {
  ScopedDirectory directory;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);

  const std::optional<Status> status = caught([&] {
    OutputFile file(directory.path("large"), OutputFile::Cache::kThrough);
    write_in_parts(file, text_of_bytes(2 << 20));
  });

  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status->message(), HasSubstr("File too large"));
}

TEST(OutputFile, SaysThatTheDiskBecameFullBehindItsBack) {
  ScopedDirectory directory;
  disk::ScopedFaults faults([writes = 0](std::string_view call, const std::string&) mutable {
    return call == "write" && ++writes == 2 ? ENOSPC : 0;
  });
  const std::string text(4 * OutputFile::kBufferBytes, 'x');

  Status status = caught([&] { OutputFile(directory.path("a")).write(file_bytes(text)); });

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(names_in(directory.path()), IsEmpty());
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
  ScopedDirectory directory;
  disk::ScopedFaults faults([](std::string_view call, const std::string&) { return call == "write" ? ENOSPC : 0; });

  Status status = caught([&] {
    OutputFile file(directory.path("a"));
    file.write(file_bytes("x"));
    file.finish();
  });

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("/a\": write: No space left on device"));
  EXPECT_THAT(names_in(directory.path()), IsEmpty());
}

TEST(OutputFile, WritesToNothingThatIsThere) {
  ScopedDirectory directory;
  std::filesystem::create_symlink("/dev/null", directory.path("link"));
  std::filesystem::create_symlink(directory.path("none"), directory.path("dangling"));

  for (const std::string& path : {directory.path("link"), directory.path("dangling"), std::string("/dev/null")}) {
    EXPECT_EQ(caught([&] { OutputFile file(path); }).code(), StatusCode::kAlreadyExists) << path;
  }
  EXPECT_FALSE(std::filesystem::exists(directory.path("none")));
}

TEST(OutputFile, NamesTheDirectoryThatIsMissing) {
  Status status = caught([] { OutputFile("/no/such/file"); });

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("\"/no/such/file\": create: No such file"));
}

std::string text_of(const InputFile& file) {
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(InputFile, GivesTheBytesAlsoAfterTheFileIsRemoved) {
  ScopedDirectory directory;
  write_file(directory.path("a"), "text");
  write_file(directory.path("empty"), "");

  InputFile file(directory.path("a"));
  std::filesystem::remove(file.path());

  EXPECT_EQ(text_of(file), "text");
  EXPECT_EQ(text_of(InputFile(directory.path("empty"))), "");
}

TEST(InputFile, GivesTheSameBytesFromTheCacheAndPastIt) {
  ScopedDirectory directory;
  const std::string text = text_of_bytes((9 << 20) + 77);
  write_file(directory.path("a"), text);
  const InputFile file(directory.path("a"));
  const auto read_all = [&](const std::string& how) {
    for (size_t offset : {0, 1, 4096, 5'000'001}) {
      std::string part(text.size() - offset, '\0');
      file.read_once(static_cast<int64_t>(offset), std::as_writable_bytes(std::span(part)));
      EXPECT_TRUE(part == text.substr(offset)) << how << " from " << offset;
    }
    std::string more(text.size(), '\0');
    EXPECT_EQ(caught([&] { file.read_once(1, std::as_writable_bytes(std::span(more))); }).code(), StatusCode::kDataLoss)
        << how;
  };

  read_all("as it comes");
  const auto absent = [&](int every) {  // one piece of so many is not in the cache
    return [every, pieces = 0](std::string_view call, const std::string&) mutable {
      return call == "pread_cached" && ++pieces % every == 0 ? EAGAIN : 0;
    };
  };
  {
    const disk::ScopedFaults faults(absent(1));
    read_all("past the cache");
  }
  const disk::ScopedFaults faults(absent(3));
  read_all("in parts");
}

TEST(InputFile, SaysThatItWasShortenedMeanwhile) {
  ScopedDirectory directory;
  write_file(directory.path("a"), "text");
  InputFile file(directory.path("a"));
  std::filesystem::resize_file(file.path(), 1);

  Status status = caught([&] { text_of(file); });

  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("ends at 1 of 4 bytes"));
}

TEST(InputFile, RefusesWhatIsNoPlainFile) {
  ScopedDirectory directory;
  write_file(directory.path("a"), "text");
  std::filesystem::create_symlink(directory.path("a"), directory.path("link"));

  EXPECT_EQ(caught([&] { InputFile file(directory.path()); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([&] { InputFile file("/dev/zero"); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([&] { InputFile file(directory.path("none")); }).code(), StatusCode::kNotFound);
  EXPECT_EQ(text_of(InputFile(directory.path("link"))), "text");
  Status status = caught([&] { InputFile file(directory.path("link"), InputFile::Links::kRefuse); });
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("link\": is a symbolic link"));
}

}  // namespace
}  // namespace muster
