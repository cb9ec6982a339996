#include "muster/data/files/byte_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cerrno>
#include <string>

#include "muster/io/disk.h"
#include "muster/io/test_files.h"

namespace muster::byte_stream_test {

using ::muster::testing_support::caught;
using ::muster::testing_support::ScopedDirectory;
using ::muster::testing_support::write_file;
using ::testing::HasSubstr;

// Some letters that compress, but not to nothing.
std::string stream_letters(size_t count) {
  std::string letters;
  for (uint32_t state = 1; letters.size() < count;)
    letters += static_cast<char>('a' + ((state = state * 1664525 + 1013904223) >> 28));
  return letters;
}

std::string stream_compressed(const std::string& text, Compression compression) {
  z_stream zlib{};
  deflateInit2(&zlib, 6, Z_DEFLATED, compression == Compression::kGzip ? 31 : 15, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&zlib, text.size()), '\0');
  zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  zlib.avail_in = static_cast<uInt>(text.size());
  zlib.next_out = reinterpret_cast<Bytef*>(out.data());
  zlib.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&zlib, Z_FINISH), Z_STREAM_END);
  out.resize(zlib.total_out);
  deflateEnd(&zlib);
  return out;
}

// In steps of this many bytes.
std::string all_of(ByteStream& stream, size_t step) {
  std::string all;
  while (true) {
    const std::string_view some = stream.peek(step).substr(0, step);
    all += some;
    stream.take(some.size());
    if (some.size() < step) return all;
  }
}

TEST(ByteStream, GivesTheBytesOfAFileInStepsOfAnySize) {
  ScopedDirectory directory;
  const std::string letters = stream_letters(1'000'003);
  write_file(directory.path("plain"), letters);
  write_file(directory.path("gzip"), stream_compressed(letters, Compression::kGzip));
  write_file(directory.path("zlib"), stream_compressed(letters, Compression::kZlib));

  for (const auto& [name, compression] :
       {std::pair("plain", Compression::kNone), {"gzip", Compression::kGzip}, {"zlib", Compression::kZlib}}) {
    for (size_t step : {1, 1000, 4096, 200'000, 262'144, 262'145, 700'000, 1'000'003, 2'000'000}) {
      ByteStream stream(directory.path(name), compression);
      EXPECT_TRUE(all_of(stream, step) == letters) << name << " in steps of " << step;
      EXPECT_EQ(stream.position(), 1'000'003);
      EXPECT_EQ(stream.peek(1), "");
    }
  }
}

TEST(ByteStream, HasNothingForAnEmptyFile) {
  ScopedDirectory directory;
  write_file(directory.path("empty"), "");

  ByteStream stream(directory.path("empty"), Compression::kNone);

  EXPECT_EQ(stream.peek(10), "");
  EXPECT_EQ(stream.left(), 0);
}

TEST(ByteStream, KnowsHowManyBytesOfAPlainFileAreLeft) {
  ScopedDirectory directory;
  write_file(directory.path("plain"), "letters");
  write_file(directory.path("zlib"), stream_compressed("letters", Compression::kZlib));
  ByteStream plain(directory.path("plain"), Compression::kNone), zlib(directory.path("zlib"), Compression::kZlib);

  EXPECT_EQ(plain.peek(3), "letters");
  plain.take(3);

  EXPECT_EQ(plain.position(), 3);
  EXPECT_EQ(plain.left(), 4);
  EXPECT_EQ(zlib.left(), std::nullopt);
}

TEST(ByteStream, KeepsWhatItGaveWhenBytesAreTaken) {
  ScopedDirectory directory;
  write_file(directory.path("plain"), "letters");
  ByteStream stream(directory.path("plain"), Compression::kNone);

  const std::string_view given = stream.peek(7);
  stream.take(7);

  EXPECT_EQ(given, "letters");
}

TEST(ByteStream, ReadsSeveralMembersOfGzipAfterEachOther) {
  ScopedDirectory directory;
  const std::string letters = stream_letters(300'000);
  std::string members;
  for (const std::string& text : {std::string("one "), std::string(), letters, std::string(" three")}) {
    members += stream_compressed(text, Compression::kGzip);
  }
  write_file(directory.path("a"), members);

  ByteStream stream(directory.path("a"), Compression::kGzip);

  EXPECT_TRUE(all_of(stream, 999) == "one " + letters + " three");
}

TEST(ByteStream, GivesWhatIsBeforeTheDamageAndSaysWhereThatIs) {
  ScopedDirectory directory;
  const std::string letters = stream_letters(1'000'000);
  std::string damaged = stream_compressed(letters, Compression::kGzip);
  for (size_t i = damaged.size() / 2; i < damaged.size(); ++i) damaged[i] = '\xFF';
  write_file(directory.path("a"), damaged);
  ByteStream stream(directory.path("a"), Compression::kGzip);

  std::string given;
  const Status status = caught([&] {
    for (std::string_view some = stream.peek(1); !some.empty(); some = stream.peek(1)) {
      given += some;
      stream.take(some.size());
    }
  });
  const Status again = caught([&] { stream.peek(1); });

  EXPECT_TRUE(given.starts_with(letters.substr(0, letters.size() * 4 / 10)));
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("/a\": the compressed data is damaged at byte "));
  EXPECT_EQ(again, status);
}

TEST(ByteStream, SaysThatCompressedDataWasCutShortOrFollowedByOtherBytes) {
  ScopedDirectory directory;
  const std::string gzip = stream_compressed("letters", Compression::kGzip);
  const std::string zlib = stream_compressed("letters", Compression::kZlib);
  const auto message = [&](const std::string& bytes, Compression compression) {
    write_file(directory.path("a"), bytes);
    ByteStream stream(directory.path("a"), compression);
    return caught([&] { stream.peek(100); }).message();
  };

  for (size_t length = 0; length < gzip.size(); ++length) {
    EXPECT_THAT(message(gzip.substr(0, length), Compression::kGzip), HasSubstr("the file ends within it")) << length;
  }
  EXPECT_THAT(message(zlib + "x", Compression::kZlib), HasSubstr("bytes follow the end of the compressed data"));
  EXPECT_THAT(message(zlib + zlib, Compression::kZlib), HasSubstr("bytes follow the end"));
  EXPECT_THAT(message(gzip + "no member", Compression::kGzip), HasSubstr("incorrect header check"));
  EXPECT_THAT(message(gzip, Compression::kZlib), HasSubstr("at byte 2 of "));
  EXPECT_EQ(message(gzip + gzip, Compression::kGzip), "");
}

TEST(ByteStream, InflatesABlockAtATimeHoweverLargeItBecomes) {
  ScopedDirectory directory;
  write_file(directory.path("bomb"), stream_compressed(std::string(50'000'000, '\0'), Compression::kZlib));

  ByteStream stream(directory.path("bomb"), Compression::kZlib);

  EXPECT_LE(stream.peek(1).size(), 1u << 20);
  EXPECT_LE(stream.peek(2'000'000).size(), 4u << 20);
}

TEST(ByteStream, GoesOnAfterADiskThatWasAway) {
  ScopedDirectory directory;
  const std::string letters = stream_letters(700'000);
  write_file(directory.path("plain"), letters);
  write_file(directory.path("gzip"), stream_compressed(letters, Compression::kGzip));

  for (const auto& [name, compression] : {std::pair("plain", Compression::kNone), {"gzip", Compression::kGzip}}) {
    ByteStream stream(directory.path(name), compression);
    const std::string begin(stream.peek(100).substr(0, 100));
    stream.take(100);
    Status status;
    {
      disk::ScopedFaults faults([](std::string_view call, const std::string&) { return call == "pread" ? EIO : 0; });
      status = caught([&] { stream.peek(650'000); });
    }

    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << name;
    EXPECT_TRUE(begin + all_of(stream, 650'000) == letters) << name;
  }
}

}  // namespace muster::byte_stream_test
