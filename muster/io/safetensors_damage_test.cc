// Files that are not as the format says. They may come from a stranger, so nothing may crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "muster/base/status.h"
#include "muster/io/safetensors.h"
#include "muster/io/test_files.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::muster::testing_support::ScopedDirectory;
using ::muster::testing_support::write_file;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string text(sizeof(length), '\0');
  std::memcpy(text.data(), &length, sizeof(length));
  return text + header + data;
}

std::string sound_file() {
  return file_of(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})",
      "12345678x");
}

class SafetensorsDamage : public ::testing::Test {
 protected:
  Status open(const std::string& text) {
    write_file(directory_.path("a"), text);
    return caught([&] {
      SafetensorsFile file(directory_.path("a"));
      // Touches every byte that is given out.
      for (const auto& name : file.names()) sum_ += std::string(text_of(file.bytes(name))).size();
    });
  }

  // What is said about a file with this header and `bytes` bytes of data.
  std::string complaint(const std::string& header, size_t bytes) {
    Status status = open(file_of(header, std::string(bytes, 'x')));
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << header;
    EXPECT_THAT(status.message(), HasSubstr(directory_.path("a")));
    return status.message();
  }

 private:
  static std::string_view text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  ScopedDirectory directory_;
  size_t sum_ = 0;
};

TEST_F(SafetensorsDamage, IsFoundAtEveryLength) {
  const std::string whole = sound_file();
  ASSERT_TRUE(open(whole).ok());

  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(open(whole.substr(0, length)).code(), StatusCode::kDataLoss) << length;
  }
  EXPECT_EQ(open(whole + "x").code(), StatusCode::kDataLoss);
}

TEST_F(SafetensorsDamage, OfAnyBitOfTheHeaderCrashesNothing) {
  const std::string whole = sound_file();

  for (size_t bit = 0; bit < (whole.size() - 9) * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const Status status = open(flipped);  // another name is no error that can be seen here
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kDataLoss || status.code() == StatusCode::kUnimplemented)
        << bit << ": " << status;
  }
}

TEST_F(SafetensorsDamage, OfTheLengthOfTheHeaderIsNamed) {
  std::string huge = sound_file();
  huge.replace(0, 8, 8, '\xff');
  std::string long_header(8, '\0');
  const uint64_t length = SafetensorsFile::kMaxHeaderBytes + 1;
  std::memcpy(long_header.data(), &length, sizeof(length));

  EXPECT_THAT(open("PK\x03\x04 of torch.save").message(),
              AllOf(HasSubstr("is a zip archive, as torch.save writes them"), HasSubstr("save_file")));
  EXPECT_THAT(open(huge).message(),
              HasSubstr("is no safetensors file, or damaged: it would have a header of 18446744073709551615 bytes"));
  EXPECT_THAT(open(long_header).message(), HasSubstr("at most 100000000"));
}

TEST_F(SafetensorsDamage, OfTheHeaderIsNamed) {
  EXPECT_THAT(complaint("", 0), HasSubstr("does not begin with {"));
  EXPECT_THAT(complaint("[]", 0), HasSubstr("does not begin with {"));
  EXPECT_THAT(complaint("{\"a\"", 0), EndsWith("the header is not JSON: it ends too early"));
  EXPECT_THAT(complaint("{\"\xff\":1}", 0), HasSubstr("not JSON"));
  EXPECT_THAT(complaint("{\"a\":\"" + std::string(100'000, 'a') + "\\x\"}", 0),
              EndsWith("the header is not JSON: byte 100008 is not expected there"))
      << "and nothing of the text";
  EXPECT_THAT(complaint(R"({"a":1})", 0), HasSubstr("tensor \"a\": expected an object"));
  EXPECT_THAT(complaint(R"({"__metadata__":{"k":1}})", 0), HasSubstr("metadata \"k\""));
  EXPECT_THAT(complaint("{\"a\":" + std::string(1'000'000, '['), 0), HasSubstr("too many levels"));
}

TEST_F(SafetensorsDamage, OfATensorIsNamed) {
  const auto tensor = [](const std::string& fields) { return "{\"w\":{" + fields + "}}"; };

  EXPECT_THAT(complaint(tensor(R"("shape":[1],"data_offsets":[0,4])"), 4), HasSubstr("dtype"));
  EXPECT_THAT(complaint(tensor(R"("dtype":1,"shape":[1],"data_offsets":[0,4])"), 4), HasSubstr("dtype"));
  EXPECT_THAT(complaint(tensor(R"("dtype":"F32","data_offsets":[0,4])"), 4), HasSubstr("shape"));
  EXPECT_THAT(complaint(tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4), HasSubstr("shape"));
  EXPECT_THAT(complaint(tensor(R"("dtype":"F32","shape":[1.0],"data_offsets":[0,4])"), 4), HasSubstr("shape"));
  EXPECT_THAT(complaint(tensor(R"("dtype":"F32","shape":[1])"), 4), HasSubstr("data_offsets"));
  EXPECT_THAT(complaint(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), 4), HasSubstr("do not fit"));
  EXPECT_THAT(complaint(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4), HasSubstr("do not fit"));
  EXPECT_THAT(complaint(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4),
              HasSubstr("do not fit float32[2]"));
  EXPECT_THAT(complaint(tensor(R"("dtype":"U16","shape":[4],"data_offsets":[0,4])"), 4),
              HasSubstr("do not fit U16[4]"));
  EXPECT_THAT(complaint(tensor(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0),
              HasSubstr("do not fit"));
  EXPECT_THAT(complaint(tensor(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,0])"), 0),
              HasSubstr("shape"));
  EXPECT_THAT(complaint(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), 8), HasSubstr("begins at 4"));
  EXPECT_THAT(complaint(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])"), 4), HasSubstr("4 bytes of data"));
  EXPECT_THAT(complaint(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
                        R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
                        6),
              HasSubstr("\"b\": begins at 2, the one before ends at 4"));
}

TEST_F(SafetensorsDamage, IsAKeyThatIsThereTwice) {
  const std::string one = R"("w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const std::string other = R"("v":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";

  EXPECT_THAT(complaint("{" + one + "," + other + "," + one + "}", 4),
              HasSubstr("tensor \"w\" is in the header twice"));
  EXPECT_THAT(complaint(R"({"w":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4),
              HasSubstr("tensor \"w\": \"dtype\" is there twice"));
  EXPECT_THAT(complaint(R"({"__metadata__":{"k":"a","k":"b"}})", 0),
              HasSubstr("\"__metadata__\": \"k\" is there twice"));
  EXPECT_THAT(complaint(R"({"__metadata__":{},"__metadata__":{}})", 0),
              HasSubstr("\"__metadata__\" is in the header twice"));
  EXPECT_TRUE(open(file_of("{" + one + "," + other + "}", "1234")).ok()) << "fields of two tensors are no such key";
}

TEST_F(SafetensorsDamage, IsANameWithANul) {
  EXPECT_THAT(complaint(R"({"a\u0000b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
              HasSubstr(R"(tensor "a\u0000b": a name with a NUL)"));

  const ScopedDirectory directory;
  const std::string name("a\0b", 3);
  const Status refusal = caught([&] { SafetensorsWriter(directory.path("b"), {{name, {DType::kByte, {1}}}}); });
  EXPECT_EQ(refusal.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(refusal.message(), HasSubstr("a name with a NUL"));
}

TEST_F(SafetensorsDamage, IsNotWhatAnUnknownElementTypeIsCalled) {
  Status status = open(file_of(R"({"w":{"dtype":"F8_E9M9","shape":[1],"data_offsets":[0,1]}})", "x"));

  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("tensor \"w\": element type \"F8_E9M9\""));
}

}  // namespace
}  // namespace muster
