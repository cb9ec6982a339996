#include "muster/data/files/tfrecord_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "muster/data/files/record_reader.h"
#include "muster/io/disk.h"
#include "muster/io/test_files.h"

namespace muster::tfrecord_writer_test {

using namespace std::string_literals;
using ::muster::testing_support::caught;
using ::muster::testing_support::names_in;
using ::muster::testing_support::read_file;
using ::muster::testing_support::ScopedDirectory;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(TfRecordWriter, WritesTheBytesThatTensorFlowWrites) {  // those of two events in a test of TensorBoard
  ScopedDirectory directory;

  TfRecordWriter writer(directory.path("a"));
  writer.write(
      "\t\0\0\xC0%\xDDu\xD5"
      "A\x1A\rbrain.Event:1"s);
  writer.write(
      "\t\0\0\0'\xE6\xB3\xD5"
      "A\x1A\rbrain.Event:2"s);
  writer.close();

  EXPECT_EQ(writer.count(), 2);
  EXPECT_EQ(read_file(directory.path("a")),
            "\x18\0\0\0\0\0\0\0\xA3\x7FK\"\t\0\0\xC0%\xDDu\xD5"
            "A\x1A\rbrain.Event:1\xEC\xF3"
            "2\x8D"
            "\x18\0\0\0\0\0\0\0\xA3\x7FK\"\t\0\0\0'\xE6\xB3\xD5"
            "A\x1A\rbrain.Event:2jM\x0B\x15"s);
}

TEST(TfRecordWriter, WritesRecordsOfAnySizeThatAreReadBack) {
  ScopedDirectory directory;
  std::vector<std::string> records;
  for (size_t size : {0, 1, 100, 262'128, 262'132, 262'144, 5, 1'000'000, 0, 300'000}) {
    records.emplace_back(size, static_cast<char>('a' + records.size()));
  }

  for (Compression compression : {Compression::kNone, Compression::kGzip, Compression::kZlib}) {
    const std::string path = directory.path(str_cat("a", static_cast<int>(compression)));
    TfRecordWriter writer(path, compression);
    for (const std::string& record : records) writer.write(record);
    writer.close();

    const auto reader = open_records(path, {.kind = RecordFormat::Kind::kTfRecord, .compression = compression});
    for (const std::string& record : records) EXPECT_TRUE(reader->next() == record) << reader->where();
    EXPECT_EQ(reader->next(), std::nullopt);
  }
}

TEST(TfRecordWriter, WritesAFileWithoutRecords) {
  ScopedDirectory directory;

  for (Compression compression : {Compression::kNone, Compression::kGzip, Compression::kZlib}) {
    const std::string path = directory.path(str_cat("a", static_cast<int>(compression)));
    TfRecordWriter(path, compression).close();

    const auto reader = open_records(path, {.kind = RecordFormat::Kind::kTfRecord, .compression = compression});
    EXPECT_EQ(reader->next(), std::nullopt);
  }
}

TEST(TfRecordWriter, WritesInBlocks) {
  ScopedDirectory directory;
  int writes = 0;
  disk::ScopedFaults faults([&](std::string_view call, const std::string&) { return writes += call == "write", 0; });

  TfRecordWriter writer(directory.path("a"));
  for (int i = 0; i < 10'000; ++i) writer.write(std::string(84, 'x'));
  writer.close();

  EXPECT_GT(writes, 0);
  EXPECT_LE(writes, 4);  // of a million bytes
}

TEST(TfRecordWriter, LeavesNoFileUnlessItIsClosed) {
  ScopedDirectory directory;

  { TfRecordWriter(directory.path("a"), Compression::kGzip).write("record"); }

  EXPECT_THAT(names_in(directory.path()), IsEmpty());
}

TEST(TfRecordWriter, TakesNoRecordAfterItIsClosed) {
  ScopedDirectory directory;
  TfRecordWriter writer(directory.path("a"));
  writer.close();

  const Status status = caught([&] { writer.write("record"); });
  writer.close();

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("/a\": a record was written after the file was closed"));
}

TEST(TfRecordWriter, CannotBeClosedAfterTheDiskWasFull) {
  ScopedDirectory directory;
  for (Compression compression : {Compression::kNone, Compression::kGzip}) {
    TfRecordWriter writer(directory.path("a"), compression);
    Status full;
    {
      disk::ScopedFaults faults([](std::string_view call, const std::string&) { return call == "write" ? ENOSPC : 0; });
      full = caught([&] {
        for (uint32_t state = 1;;) {  // what cannot be compressed
          std::string noise(10'000, '\0');
          for (char& c : noise) c = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
          writer.write(noise);
        }
      });
    }
    const Status closed = caught([&] { writer.close(); });

    EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(closed.code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(caught([&] { writer.write("x"); }).code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_THAT(names_in(directory.path()), IsEmpty());
}

TEST(TfRecordWriter, RefusesARecordThatNobodyCouldRead) {
  ScopedDirectory directory;
  TfRecordWriter writer(directory.path("a"), Compression::kGzip);
  const char byte = 'x';

  const Status status = caught([&] { writer.write(std::string_view(&byte, (size_t{1} << 30) + 1)); });
  writer.write("small");
  writer.close();

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("record 0: has 1073741825 bytes, at most 1073741824"));
  EXPECT_EQ(writer.count(), 1);
}

}  // namespace muster::tfrecord_writer_test
