#include "muster/io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "muster/base/status.h"
#include "muster/io/crc32c.h"
#include "muster/io/disk.h"
#include "muster/io/test_files.h"

namespace muster {
namespace {

using ::muster::testing_support::bytes_of;
using ::muster::testing_support::caught;
using ::muster::testing_support::names_in;
using ::muster::testing_support::read_file;
using ::muster::testing_support::ScopedDirectory;
using ::muster::testing_support::write_file;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr DType kStored[] = {DType::kByte, DType::kChar,     DType::kShort,       DType::kInt,
                             DType::kLong, DType::kHalf,     DType::kFloat,       DType::kDouble,
                             DType::kBool, DType::kBFloat16, DType::kComplexFloat};

std::vector<std::byte> pattern(int64_t size) {
  std::vector<std::byte> bytes(static_cast<size_t>(size));
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + 1);
  return bytes;
}

// What Python's safetensors 0.8.0 writes for {"w": float32 [[1, 2], [3, 4]], "n": int64 7, "none": uint8 of (0, 3)} and
// metadata {"k": "v"}.
std::string python_file() {
  using namespace std::string_literals;
  return "\xc8\0\0\0\0\0\0\0"s
         R"({"__metadata__":{"k":"v"},"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
         R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[8,24]},)"
         R"("none":{"dtype":"U8","shape":[0,3],"data_offsets":[24,24]}}       )"
         "\x07\0\0\0\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@"s;
}

TEST(Safetensors, ReadsWhatPythonWrites) {
  ScopedDirectory directory;
  write_file(directory.path("a"), python_file());
  const std::vector<float> w = {1, 2, 3, 4};
  const std::vector<int64_t> n = {7};

  SafetensorsFile file(directory.path("a"));

  EXPECT_THAT(file.names(), ElementsAre("n", "w", "none"));
  EXPECT_EQ(file.spec("n"), (TensorSpec{DType::kLong, {}}));
  EXPECT_EQ(file.spec("w"), (TensorSpec{DType::kFloat, {2, 2}}));
  EXPECT_EQ(file.spec("none"), (TensorSpec{DType::kByte, {0, 3}}));
  EXPECT_THAT(file.bytes("w"), ElementsAreArray(bytes_of(w)));
  EXPECT_THAT(file.bytes("n"), ElementsAreArray(bytes_of(n)));
  EXPECT_THAT(file.bytes("none"), IsEmpty());
  EXPECT_THAT(file.metadata(), ElementsAre(std::pair("k", "v")));
}

TEST(Safetensors, WritesTheBytesThatPythonWrites) {
  ScopedDirectory directory;
  const std::vector<float> w = {1, 2, 3, 4};
  const std::vector<int64_t> n = {7};

  SafetensorsWriter writer(
      directory.path("a"),
      {{"n", {DType::kLong, {}}}, {"w", {DType::kFloat, {2, 2}}}, {"none", {DType::kByte, {0, 3}}}}, {{"k", "v"}});
  writer.write("n", bytes_of(n));
  writer.write("w", bytes_of(w));
  writer.write("none", {});
  writer.finish();

  EXPECT_EQ(read_file(directory.path("a")), python_file());
}

TEST(Safetensors, GivesBackEveryElementType) {
  ScopedDirectory directory;
  std::vector<NamedSpec> tensors;
  for (DType dtype : kStored) tensors.push_back({std::string(name_of(dtype)), {dtype, {3, 5}}});

  SafetensorsWriter writer(directory.path("a"), tensors);
  for (const auto& [name, spec, foreign_type] : tensors) {
    const auto bytes = pattern(spec.bytes());
    EXPECT_EQ(writer.write(name, bytes), crc32c(bytes));
  }
  writer.finish();

  SafetensorsFile file(directory.path("a"));
  for (const auto& [name, spec, foreign_type] : tensors) {
    EXPECT_EQ(file.spec(name), spec);
    EXPECT_THAT(file.bytes(name), ElementsAreArray(pattern(spec.bytes())));
    EXPECT_EQ(dtype_from_safetensors(*safetensors_name(spec.dtype)), spec.dtype);
  }
}

TEST(Safetensors, GivesBackElementTypesThatProgramsHaveNot) {
  ScopedDirectory directory;
  const std::vector<NamedSpec> tensors = {{"a", {DType::kLong, {3}}, "U64"},
                                          {"b", {DType::kInt, {3}}, "U32"},
                                          {"c", {DType::kShort, {3}}, "U16"},
                                          {"d", {DType::kByte, {3}}, "F8_E4M3"},
                                          {"e", {DType::kByte, {3}}, "F8_E5M2"}};

  SafetensorsWriter writer(directory.path("a"), tensors);
  for (const NamedSpec& tensor : tensors) writer.write(tensor.name, pattern(tensor.spec.bytes()));
  writer.finish();

  const SafetensorsFile file(directory.path("a"));
  for (const NamedSpec& tensor : tensors) {
    EXPECT_EQ(file.foreign_type(tensor.name), tensor.foreign_type);
    EXPECT_EQ(file.stored_spec(tensor.name), tensor.spec);
    EXPECT_THAT(file.bytes(tensor.name), ElementsAreArray(pattern(tensor.spec.bytes())));
    const Status status = caught([&] { static_cast<void>(file.spec(tensor.name)); });
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
    EXPECT_THAT(status.message(), HasSubstr("element type \"" + std::string(tensor.foreign_type) + "\""));
  }
  EXPECT_THAT(read_file(directory.path("a")), HasSubstr(R"("dtype":"F8_E4M3")"));
  EXPECT_EQ(caught([&] { SafetensorsWriter(directory.path("b"), {{"w", {DType::kInt, {1}}, "U16"}}); }).code(),
            StatusCode::kInvalidArgument);
}

TEST(Safetensors, NamesTheElementTypeThatTheFormatDoesNotHave) {
  ScopedDirectory directory;

  for (DType dtype : {DType::kComplexHalf, DType::kComplexDouble}) {
    Status status = caught([&] { SafetensorsWriter(directory.path("a"), {{"w", {dtype, {1}}}}); });

    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
    EXPECT_THAT(status.message(), HasSubstr(std::string(name_of(dtype))));
  }
  EXPECT_THAT(names_in(directory.path()), IsEmpty());
}

TEST(Safetensors, GivesBackAFileWithoutTensorsAndNamesOfAnyText) {
  ScopedDirectory directory;
  SafetensorsWriter(directory.path("none"), {}).finish();
  const std::string name = "layer/\"quoted\"\n\u00e9\u4e2d";
  SafetensorsWriter writer(directory.path("named"), {{name, {DType::kByte, {1}}}}, {{"\"", "\\"}});
  writer.write(name, pattern(1));
  writer.finish();

  EXPECT_THAT(SafetensorsFile(directory.path("none")).names(), IsEmpty());
  SafetensorsFile file(directory.path("named"));
  EXPECT_THAT(file.names(), ElementsAre(name));
  EXPECT_THAT(file.metadata(), ElementsAre(std::pair("\"", "\\")));
}

TEST(Safetensors, GivesBackATensorThatIsWrittenInManyPieces) {
  ScopedDirectory directory;
  const auto bytes = pattern((3 << 20) + 5);
  const TensorSpec spec{DType::kByte, {static_cast<int64_t>(bytes.size())}};

  SafetensorsWriter writer(directory.path("a"), {{"w", spec}});
  const uint32_t crc = writer.write("w", bytes);
  writer.finish();

  EXPECT_EQ(crc, crc32c(bytes));
  SafetensorsFile file(directory.path("a"));
  EXPECT_EQ(std::memcmp(file.bytes("w").data(), bytes.data(), bytes.size()), 0);
}

TEST(Safetensors, RefusesNamesThatAFileCannotHave) {
  ScopedDirectory directory;
  const TensorSpec spec{DType::kByte, {1}};
  const auto code = [&](std::vector<NamedSpec> tensors) {
    return caught([&] { SafetensorsWriter(directory.path("a"), tensors); }).code();
  };

  EXPECT_EQ(code({{"w", spec}, {"w", spec}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"__metadata__", spec}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"\xff", spec}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"w", {DType::kByte, {-1}}}}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{"w", {DType::kLong, {int64_t{1} << 62}}}}), StatusCode::kInvalidArgument);
  EXPECT_THAT(names_in(directory.path()), IsEmpty());
}

TEST(Safetensors, RefusesTensorsInAnotherOrderOfAnotherSizeOrLeftOut) {
  ScopedDirectory directory;
  SafetensorsWriter writer(directory.path("a"), {{"a", {DType::kByte, {2}}}, {"b", {DType::kByte, {2}}}});

  EXPECT_EQ(caught([&] { writer.write("b", pattern(2)); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([&] { writer.write("a", pattern(3)); }).code(), StatusCode::kInvalidArgument);
  writer.write("a", pattern(2));
  EXPECT_EQ(caught([&] { writer.finish(); }).code(), StatusCode::kFailedPrecondition);
  writer.write("b", pattern(2));
  EXPECT_EQ(caught([&] { writer.write("b", pattern(2)); }).code(), StatusCode::kInvalidArgument);
  writer.finish();
}

TEST(Safetensors, NamesTheTensorThatIsMissing) {
  ScopedDirectory directory;
  SafetensorsWriter(directory.path("a"), {}).finish();
  SafetensorsFile file(directory.path("a"));

  Status status = caught([&] { (void)file.bytes("w"); });

  EXPECT_FALSE(file.has("w"));
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("tensor \"w\""));
}

TEST(Safetensors, GivesAnyBytesOfATensorAndNoOthers) {
  ScopedDirectory directory;
  write_file(directory.path("a"), python_file());
  SafetensorsFile file(directory.path("a"));
  const std::vector<float> w = {1, 2, 3, 4};
  std::vector<std::byte> two(8);
  const auto code = [&](int64_t offset) { return caught([&] { file.read("w", offset, two); }).code(); };

  file.read("w", 4, two);

  EXPECT_THAT(two, ElementsAreArray(bytes_of(w).subspan(4, 8)));
  EXPECT_EQ(code(9), StatusCode::kOutOfRange);
  EXPECT_EQ(code(-1), StatusCode::kOutOfRange);
  EXPECT_EQ(code(INT64_MAX), StatusCode::kOutOfRange);
}

TEST(Safetensors, SaysThatTheDiskIsFull) {
  ScopedDirectory directory;
  disk::ScopedFaults faults([](std::string_view call, const std::string&) { return call == "write" ? ENOSPC : 0; });

  Status status = caught([&] { SafetensorsWriter(directory.path("a"), {}).finish(); });

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("/a\": write: No space left on device"));
  EXPECT_THAT(names_in(directory.path()), IsEmpty());
}

TEST(CheckedBytes, IsNothingForSizesThatNoTensorHas) {
  constexpr int64_t kHuge = int64_t{1} << 62;

  EXPECT_EQ(checked_bytes({DType::kFloat, {2, 3}}), 24);
  EXPECT_EQ(checked_bytes({DType::kFloat, {}}), 4);
  EXPECT_EQ(checked_bytes({DType::kFloat, {0, 3}}), 0);
  EXPECT_EQ(checked_bytes({DType::kFloat, {0, kHuge, kHuge}}), std::nullopt);
  EXPECT_EQ(checked_bytes({DType::kFloat, {-1}}), std::nullopt);
  EXPECT_EQ(checked_bytes({DType::kFloat, {kHuge}}), std::nullopt);
  EXPECT_EQ(checked_bytes({DType::kByte, {kHuge, kHuge}}), std::nullopt);
}

}  // namespace
}  // namespace muster
