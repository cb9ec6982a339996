#include "muster/data/files/record_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "muster/data/files/tfrecord_frame.h"
#include "muster/data/files/tfrecord_writer.h"
#include "muster/io/disk.h"
#include "muster/io/test_files.h"

namespace muster::record_reader_test {

using namespace std::string_literals;
using ::muster::testing_support::caught;
using ::muster::testing_support::read_file;
using ::muster::testing_support::ScopedDirectory;
using ::muster::testing_support::write_file;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Kind = RecordFormat::Kind;

std::vector<std::string> records_of(RecordReader& reader) {
  std::vector<std::string> records;
  while (const auto record = reader.next()) records.emplace_back(*record);
  return records;
}

// A file of these bytes in a directory of its own.
class RecordFile {
 public:
  explicit RecordFile(const std::string& bytes) { write_file(path(), bytes); }
  std::string path() const { return directory_.path("a"); }
  std::unique_ptr<RecordReader> open(const RecordFormat& format) const { return open_records(path(), format); }

 private:
  ScopedDirectory directory_;
};

std::vector<std::string> lines_of(const std::string& text, int64_t skip = 0, bool quoted = false) {
  const RecordFile file(text);
  return records_of(*file.open({.kind = Kind::kLines, .skip_lines = skip, .quoted = quoted}));
}

std::string tfrecord_length(uint64_t length) {
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  const uint32_t sum = tfrecord_sum(bytes);
  return bytes.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
}

std::string framed(const std::string& record) {
  const uint32_t sum = tfrecord_sum(record);
  return (tfrecord_length(record.size()) + record).append(reinterpret_cast<const char*>(&sum), sizeof(sum));
}

TEST(RecordReader, ReadsWhatTensorFlowWrote) {  // two events in a test of TensorBoard
  const RecordFile file(
      "\x18\0\0\0\0\0\0\0\xA3\x7FK\"\t\0\0\xC0%\xDDu\xD5"
      "A\x1A\rbrain.Event:1\xEC\xF3"
      "2\x8D"
      "\x18\0\0\0\0\0\0\0\xA3\x7FK\"\t\0\0\0'\xE6\xB3\xD5"
      "A\x1A\rbrain.Event:2jM\x0B\x15"s);

  const auto records = records_of(*file.open({.kind = Kind::kTfRecord}));

  EXPECT_THAT(records, ElementsAre(HasSubstr("brain.Event:1"), HasSubstr("brain.Event:2")));
}

TEST(RecordReader, SaysWhichRecordItGaveLast) {
  const RecordFile file(framed("a") + framed("") + framed("c"));
  const auto reader = file.open({.kind = Kind::kTfRecord});

  EXPECT_EQ(reader->next(), "a");
  EXPECT_EQ(reader->number(), 0);
  EXPECT_EQ(reader->next(), "");
  EXPECT_EQ(reader->next(), "c");
  EXPECT_EQ(reader->number(), 2);
  EXPECT_EQ(reader->where(), "file \"" + file.path() + "\": record 2");
  EXPECT_EQ(reader->next(), std::nullopt);
  EXPECT_EQ(reader->number(), 2);
}

TEST(RecordReader, GoesOnAfterARecordWhoseBytesAreWrong) {
  std::string wrong = framed("second");
  wrong[kTfRecordHeadBytes + 2] ^= 1;
  const RecordFile file(framed("first") + wrong + framed("third"));
  const auto reader = file.open({.kind = Kind::kTfRecord});
  reader->next();

  const Status status = caught([&] { reader->next(); });

  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("/a\": record 1: its 6 bytes do not have the CRC"));
  EXPECT_EQ(reader->number(), 1);
  EXPECT_EQ(reader->next(), "third");
  EXPECT_EQ(reader->number(), 2);
}

TEST(RecordReader, EndsAfterARecordWhoseLengthIsWrong) {
  std::string wrong = framed("second");
  wrong[0] ^= 1;
  const RecordFile file(framed("first") + wrong + framed("third"));
  const auto reader = file.open({.kind = Kind::kTfRecord});
  reader->next();

  const Status status = caught([&] { reader->next(); });

  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("record 1: its length does not have the CRC"));
  EXPECT_EQ(reader->next(), std::nullopt);
}

TEST(RecordReader, EndsBeforeARecordThatIsBeingWritten) {
  const std::string whole = framed("one") + framed("two");
  for (size_t length = framed("one").size(); length < whole.size(); ++length) {
    const RecordFile file(whole.substr(0, length));

    EXPECT_THAT(records_of(*file.open({.kind = Kind::kTfRecord, .growing = true})), ElementsAre("one")) << length;
  }
  std::string damaged = framed("one");
  damaged[3] ^= 1;
  const RecordFile file(damaged);
  const auto reader = file.open({.kind = Kind::kTfRecord, .growing = true});
  EXPECT_EQ(caught([&] { reader->next(); }).code(), StatusCode::kDataLoss) << "a wrong length is no short file";
}

TEST(RecordReader, SaysThatAFileOfRecordsWasCutShort) {
  const std::string whole = framed("first") + framed("second");

  for (size_t length = framed("first").size() + 1; length < whole.size(); ++length) {
    const RecordFile file(whole.substr(0, length));
    const auto reader = file.open({.kind = Kind::kTfRecord});
    EXPECT_EQ(reader->next(), "first");
    const Status status = caught([&] { reader->next(); });
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << length;
    EXPECT_THAT(status.message(), HasSubstr("record 1: the file ends ")) << length;
    EXPECT_EQ(reader->next(), std::nullopt);
  }
}

TEST(RecordReader, AsksForNoMemoryThatALengthAloneClaims) {
  const auto message = [](const std::string& bytes) {
    const RecordFile file(bytes);
    return caught([&] { file.open({.kind = Kind::kTfRecord})->next(); }).message();
  };

  for (uint64_t length : {uint64_t{11}, uint64_t{1} << 40, ~uint64_t{0} - 15, ~uint64_t{0}}) {
    EXPECT_THAT(message(tfrecord_length(length) + "ten bytes."),
                HasSubstr(str_cat("ends within it: ", length, " bytes and their CRC are to follow, it has 10")));
  }
}

// One block that is not really compressed, and no end: of frames that no writer writes.
std::string gzip_of(const std::string& bytes) {
  std::string out = "\x1F\x8B\x08\0\0\0\0\0\0\xFF\x01"s;
  const auto size = static_cast<uint16_t>(bytes.size()), other = static_cast<uint16_t>(~size);
  out.append(reinterpret_cast<const char*>(&size), 2).append(reinterpret_cast<const char*>(&other), 2);
  return out + bytes;
}

TEST(RecordReader, RefusesALengthThatNoCompressedRecordMayHave) {
  const RecordFile over(gzip_of(tfrecord_length((uint64_t{1} << 30) + 1))), most(gzip_of(tfrecord_length(1 << 30)));
  const RecordFormat format{.kind = Kind::kTfRecord, .compression = Compression::kGzip};
  const auto reader = over.open(format);

  const Status status = caught([&] { reader->next(); });
  const Status allowed = caught([&] { most.open(format)->next(); });

  EXPECT_THAT(status.message(), HasSubstr("record 0: has 1073741825 bytes, at most 1073741824 are allowed"));
  EXPECT_EQ(reader->next(), std::nullopt);
  EXPECT_THAT(allowed.message(), HasSubstr("the file ends within it (in record 0)"));
}

TEST(RecordReader, GivesTheRecordsBeforeDamagedCompressedData) {
  ScopedDirectory directory;
  TfRecordWriter writer(directory.path("a"), Compression::kZlib);
  for (int i = 0; i < 1000; ++i) writer.write(str_cat("record ", i * 7919 % 1000));
  writer.close();
  std::string bytes = read_file(directory.path("a"));
  write_file(directory.path("a"), bytes.substr(0, bytes.size() / 2));
  const auto reader = open_records(directory.path("a"), {.kind = Kind::kTfRecord, .compression = Compression::kZlib});

  int64_t good = 0;
  const Status status = caught([&] {
    while (reader->next()) ++good;
  });

  EXPECT_GT(good, 300);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("the compressed data is damaged at byte "),
                                      HasSubstr(str_cat("(in record ", good, ")"))));
  EXPECT_EQ(reader->number(), good);
  EXPECT_EQ(reader->next(), std::nullopt);
}

TEST(RecordReader, ReadsARecordAgainAfterADiskThatWasAway) {
  const RecordFile file(framed("first") + framed(std::string(1'000'000, 'x')) + framed("third"));
  const auto reader = file.open({.kind = Kind::kTfRecord});
  reader->next();
  {
    disk::ScopedFaults faults([](std::string_view call, const std::string&) { return call == "pread" ? EIO : 0; });
    EXPECT_EQ(caught([&] { reader->next(); }).code(), StatusCode::kUnavailable);
  }

  EXPECT_EQ(reader->number(), 0);
  EXPECT_EQ(reader->next()->size(), 1'000'000u);
  EXPECT_EQ(reader->number(), 1);
  EXPECT_EQ(reader->next(), "third");
}

TEST(RecordReader, SurvivesAnyChangeOfAByte) {
  const std::string whole = framed("first") + framed("") + framed("a third that is longer");

  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] ^= 0x40;
    const RecordFile file(damaged);
    const auto reader = file.open({.kind = Kind::kTfRecord});
    int errors = 0;
    for (int calls = 0; calls < 4; ++calls) errors += !caught([&] { reader->next(); }).ok();
    EXPECT_EQ(errors, 1) << at;
    EXPECT_EQ(reader->next(), std::nullopt) << at;
  }
}

TEST(RecordReader, EndsLinesWithEitherKindOfBreakOrTheFile) {
  EXPECT_THAT(lines_of("one\ntwo\r\n\nfour"), ElementsAre("one", "two", "", "four"));
  EXPECT_THAT(lines_of("one\ntwo\n"), ElementsAre("one", "two"));
  EXPECT_THAT(lines_of("one\n\n"), ElementsAre("one", ""));
  EXPECT_THAT(lines_of("\r\n"), ElementsAre(""));
  EXPECT_THAT(lines_of("a\rb\r\r\nc\r"), ElementsAre("a\rb\r", "c\r"));
  EXPECT_THAT(lines_of(""), IsEmpty());
}

TEST(RecordReader, SkipsAByteOrderMarkAtTheBeginningOnly) {
  EXPECT_THAT(lines_of("\xEF\xBB\xBFone\n\xEF\xBB\xBFtwo"), ElementsAre("one", "\xEF\xBB\xBFtwo"));
  EXPECT_THAT(lines_of("\xEF\xBB\xBF"), IsEmpty());
  EXPECT_THAT(lines_of("\xEF\xBB"), ElementsAre("\xEF\xBB"));
}

TEST(RecordReader, SaysThatAFileLooksAsIfItWereCompressed) {
  const RecordFile file("\x1F\x8B\x08 and so on, long enough for the head of a record\n");
  const auto said = [&](Kind kind) { return caught([&] { file.open({.kind = kind})->next(); }).message(); };

  EXPECT_EQ(said(Kind::kLines), "file \"" + file.path() +
                                    "\": line 1: the file begins as one does that gzip has compressed, expected lines; "
                                    "FileOptions::compression says that it is Compression::kGzip");
  EXPECT_THAT(said(Kind::kTfRecord), HasSubstr("record 0: the file begins as one does that gzip has compressed"));
  EXPECT_THAT(lines_of("one\n\x1F\x8B"), ElementsAre("one", "\x1F\x8B"));
}

TEST(RecordReader, CountsLinesThatItSkips) {
  const RecordFile file("name\nunit\none\ntwo\n");
  const auto reader = file.open({.kind = Kind::kLines, .skip_lines = 2});

  EXPECT_EQ(reader->next(), "one");
  EXPECT_EQ(reader->where(), "file \"" + file.path() + "\": line 3");
  EXPECT_THAT(lines_of("name\n", 2), IsEmpty());
}

TEST(RecordReader, KeepsLineBreaksWithinQuotesWhereThatIsAskedFor) {
  const std::string text = "a,\"one\n\"\"two\"\"\r\nthree\"\r\nb,\"\"\"\n\"\nc";
  const RecordFile file(text);
  const auto reader = file.open({.kind = Kind::kLines, .quoted = true});

  EXPECT_EQ(reader->next(), "a,\"one\n\"\"two\"\"\r\nthree\"");
  EXPECT_EQ(reader->number(), 1);
  EXPECT_EQ(reader->next(), "b,\"\"\"\n\"");
  EXPECT_EQ(reader->number(), 4);
  EXPECT_EQ(reader->next(), "c");
  EXPECT_EQ(reader->number(), 6);
  EXPECT_THAT(lines_of("\"a\nb\"\nc\n", 1, true), ElementsAre("c"));
  EXPECT_THAT(lines_of("\"a\nb\"\n"), ElementsAre("\"a", "b\""));
}

TEST(RecordReader, CountsQuotesAtAnyPlaceOfAWord) {
  for (size_t before = 0; before < 20; ++before) {
    for (size_t between = 0; between < 20; ++between) {
      const std::string line = std::string(before, 'a') + '"' + std::string(between, '\xA2') + "\n#!\"";
      EXPECT_THAT(lines_of(line + "\nb", 0, true), ElementsAre(line, "b"));
    }
  }
}

TEST(RecordReader, NamesTheLineWhoseQuotesAreNotClosed) {
  for (const char* text : {"a\n\"b\nc\nd", "a\n\"b\nc\n", "a\n\""}) {
    const RecordFile file(text);
    const auto reader = file.open({.kind = Kind::kLines, .quoted = true});
    reader->next();

    const Status status = caught([&] { reader->next(); });

    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("line 2: the file ends within quotes"));
    EXPECT_EQ(reader->next(), std::nullopt);
  }
}

TEST(RecordReader, ReadsLinesThatAreLongerThanABlock) {
  std::vector<std::string> lines;
  std::string text;
  for (size_t size : {300'000, 10, 262'143, 262'144, 0, 2'000'000, 1}) {
    lines.emplace_back(size, static_cast<char>('a' + lines.size()));
    text += lines.back() + "\r\n";
  }

  EXPECT_TRUE(lines_of(text) == lines);
  EXPECT_TRUE(lines_of(text, 0, true) == lines);
}

TEST(RecordReader, RefusesALineThatIsTooLong) {
  const RecordFile fits(std::string(64 << 20, 'x') + "\ny");
  EXPECT_EQ(fits.open({.kind = Kind::kLines})->next()->size(), 64u << 20);

  for (const char* end : {"", "\nz"}) {
    const RecordFile file("y\n" + std::string((64 << 20) + 1, 'x') + end);
    const auto reader = file.open({.kind = Kind::kLines});
    reader->next();
    const Status status = caught([&] { reader->next(); });
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("line 2: has more than 67108864 bytes"));
    EXPECT_EQ(reader->next(), std::nullopt);
  }
}

TEST(RecordReader, ReadsFixedRecordsBetweenHeaderAndFooter) {
  const RecordFile file("HHaaabbbcccF"), empty("HHF");
  const RecordFormat format{.kind = Kind::kFixed, .record_bytes = 3, .header_bytes = 2, .footer_bytes = 1};

  const auto reader = file.open(format);

  EXPECT_THAT(records_of(*reader), ElementsAre("aaa", "bbb", "ccc"));
  EXPECT_EQ(reader->where(), "file \"" + file.path() + "\": record 2");
  EXPECT_THAT(records_of(*empty.open(format)), IsEmpty());
}

TEST(RecordReader, SaysWhatIsLeftOverOfFixedRecords) {
  const RecordFormat format{.kind = Kind::kFixed, .record_bytes = 3, .header_bytes = 2, .footer_bytes = 1};

  const Status over = caught([&] { RecordFile("HHaaabbbccF").open(format); });
  const Status small = caught([&] { RecordFile("HH").open(format); });

  EXPECT_EQ(over.code(), StatusCode::kDataLoss);
  EXPECT_THAT(over.message(),
              HasSubstr("/a\": 2 of its 11 bytes are left over after a header of 2, 2 records of 3 and a footer of 1"));
  EXPECT_EQ(small.code(), StatusCode::kDataLoss);
  EXPECT_THAT(small.message(), HasSubstr("has 2 bytes, the header of 2 and the footer of 1 alone have 3"));
}

TEST(RecordReader, SaysAtTheEndWhatIsLeftOverOfFixedRecordsInACompressedFile) {
  ScopedDirectory directory;
  TfRecordWriter writer(directory.path("a"), Compression::kGzip);
  writer.write(std::string(84, 'x'));  // 12 bytes before it and 4 behind it
  writer.close();
  const auto open = [&](int64_t record, int64_t header, int64_t footer) {
    return open_records(directory.path("a"), {.kind = Kind::kFixed,
                                              .compression = Compression::kGzip,
                                              .record_bytes = record,
                                              .header_bytes = header,
                                              .footer_bytes = footer});
  };

  EXPECT_THAT(records_of(*open(42, 12, 4)), ElementsAre(std::string(42, 'x'), std::string(42, 'x')));
  EXPECT_THAT(caught([&] { records_of(*open(30, 12, 4)); }).message(),
              HasSubstr("record 2: 28 bytes are left over, expected records of 30 and a footer of 4"));
  EXPECT_THAT(caught([&] { records_of(*open(50, 0, 1)); }).message(), HasSubstr("record 1: 50 bytes are left over"));
  EXPECT_THAT(caught([&] { records_of(*open(50, 101, 0)); }).message(),
              HasSubstr("record 0: the file ends after 100 bytes of its header of 101"));
}

TEST(RecordReader, RefusesAFormatThatCannotBe) {
  const RecordFile file("");
  const auto message = [&](const RecordFormat& format) {
    const Status status = caught([&] { file.open(format); });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };

  EXPECT_THAT(message({.kind = Kind::kFixed}), HasSubstr("record_bytes of its format is 0, expected 1 to "));
  EXPECT_THAT(message({.kind = Kind::kFixed, .record_bytes = 1, .header_bytes = -1}), HasSubstr("header_bytes"));
  EXPECT_THAT(message({.kind = Kind::kFixed, .record_bytes = 1, .footer_bytes = int64_t{1} << 62}),
              HasSubstr("footer_bytes"));
  EXPECT_THAT(message({.kind = Kind::kLines, .skip_lines = -1}), HasSubstr("skip_lines of its format is -1"));
}

TEST(RecordReader, NamesTheFileThatIsMissing) {
  const Status status = caught([] { open_records("/no/such/file", {.kind = Kind::kLines}); });

  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("\"/no/such/file\""));
}

}  // namespace muster::record_reader_test
