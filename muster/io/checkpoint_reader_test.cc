#include "muster/io/checkpoint_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "muster/base/status.h"
#include "muster/io/test_checkpoints.h"
#include "muster/io/test_files.h"

namespace muster {
namespace {

using namespace ::muster::testing_support;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kRows = 7;

TEST(CheckpointReader, GivesTheRowsOfAnyShardsToAnyOtherShards) {
  for (const auto& [stored, wanted] : {std::pair{4, 1}, {4, 2}, {2, 3}, {1, 4}, {4, 4}, {9, 2}, {2, 9}}) {
    ScopedDirectory scratch;
    CheckpointDirectory directory(scratch.path());
    CheckpointReader reader(save(directory, 5, kRows, stored));

    for (const auto& [first, count] : shards_of(kRows, wanted)) {
      EXPECT_EQ(read_rows(reader, first, count), rows_of_step(5, first, count)) << stored << " to " << wanted;
    }
  }
}

TEST(CheckpointReader, GivesEveryRangeOfRows) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  CheckpointReader reader(save(directory, 5, kRows, 3));

  for (int64_t first = 0; first <= kRows; ++first) {
    for (int64_t count = 0; count <= kRows - first; ++count) {
      EXPECT_EQ(read_rows(reader, first, count), rows_of_step(5, first, count));
    }
  }
}

TEST(CheckpointReader, GivesBackScalarsAndEmptyTensorsAndSlicesOfTwoKindsInOneFile) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  const std::vector<double> scalar = {2.5};
  const std::vector<int16_t> high = {3, 4};
  const std::vector<int16_t> low = {1, 2};
  const std::string temporary = directory.begin(0);
  CheckpointIndex index{.step = 0, .metadata = {{"k", "v"}}};
  index.entries = write_shard(temporary, "ps",
                              {{"scalar", {DType::kDouble, {}}, {}, 0, bytes_of(scalar)},
                               {"no_rows", {DType::kFloat, {0, 3}}, {0, 3}, 0, {}},
                               {"no_columns", {DType::kFloat, {3, 0}}, {3, 0}, 0, {}},
                               {"twice", {DType::kShort, {2}}, {4}, 2, bytes_of(high)},
                               {"twice", {DType::kShort, {2}}, {4}, 0, bytes_of(low)}});
  CheckpointReader reader(directory.commit(temporary, index));
  double number = 0;
  std::vector<int16_t> four(4);

  reader.read("scalar", 0, 1, std::as_writable_bytes(std::span(&number, 1)));
  reader.read("twice", 0, 4, std::as_writable_bytes(std::span(four)));
  reader.read("no_rows", 0, 0, {});
  reader.read("no_columns", 1, 2, {});

  EXPECT_EQ(number, 2.5);
  EXPECT_THAT(four, ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(reader.names(), ElementsAre("no_columns", "no_rows", "scalar", "twice"));
  EXPECT_EQ(reader.spec("twice"), (TensorSpec{DType::kShort, {4}}));
  EXPECT_EQ(reader.spec("no_rows"), (TensorSpec{DType::kFloat, {0, 3}}));
  EXPECT_EQ(reader.index().metadata, index.metadata);
}

TEST(CheckpointReader, RefusesRowsVariablesAndRoomThatDoNotFit) {
  ScopedDirectory scratch;
  CheckpointDirectory directory(scratch.path());
  CheckpointReader reader(save(directory, 5, kRows, 2));
  const auto code = [&](const std::string& variable, int64_t first, int64_t count, size_t room) {
    std::vector<std::byte> out(room);
    return caught([&] { reader.read(variable, first, count, out); }).code();
  };

  EXPECT_FALSE(reader.has("v"));
  EXPECT_TRUE(reader.has("w"));
  EXPECT_EQ(code("v", 0, 0, 0), StatusCode::kNotFound);
  EXPECT_EQ(code("w", -1, 1, 8), StatusCode::kOutOfRange);
  EXPECT_EQ(code("w", 1, kRows, 8 * kRows), StatusCode::kOutOfRange);
  EXPECT_EQ(code("w", INT64_MAX, INT64_MAX, 8), StatusCode::kOutOfRange);
  EXPECT_EQ(code("w", 0, -1, 0), StatusCode::kOutOfRange);
  EXPECT_EQ(code("w", 0, 2, 8), StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([&] { CheckpointReader none(scratch.path("none")); }).code(), StatusCode::kNotFound);
}

// A checkpoint of two shards in which the second file is then changed.
class CheckpointReaderDamage : public ::testing::Test {
 protected:
  CheckpointReaderDamage() : directory_(scratch_.path()), path_(save(directory_, 5, kRows, 2)) {}

  Status read(int64_t first, int64_t count) {
    CheckpointReader reader(path_);
    return caught([&] { EXPECT_EQ(read_rows(reader, first, count), rows_of_step(5, first, count)); });
  }

  ScopedDirectory scratch_;
  CheckpointDirectory directory_;
  const std::string path_;
  const std::string file_ = path_ + "/shard-job-ps-task-1.safetensors";
  const std::string whole_ = read_file(file_);
};

TEST_F(CheckpointReaderDamage, OfAnyBitIsFoundOrChangesNothing) {
  int found = 0;

  for (size_t bit = 0; bit < whole_.size() * 8; ++bit) {
    std::string flipped = whole_;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    write_file(file_, flipped);
    const Status status = read(0, kRows);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kDataLoss) << bit << ": " << status;
    if (!status.ok()) ++found;
    const bool in_data = bit / 8 >= whole_.size() - 3 * 8;
    if (in_data) {
      EXPECT_THAT(status.message(), AllOf(HasSubstr("\"w\""), HasSubstr(file_), HasSubstr("CRC-32C")));
    }
  }
  // Only the metadata of the file, "format" and "pt", may change unseen.
  EXPECT_GE(found, static_cast<int>(whole_.size() * 8) - 10 * 8);
}

TEST_F(CheckpointReaderDamage, IsFoundAtEveryLength) {
  for (size_t length = 0; length < whole_.size(); ++length) {
    write_file(file_, whole_.substr(0, length));
    const Status status = read(0, kRows);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << length;
    EXPECT_THAT(status.message(), AllOf(HasSubstr("variable \"w\""), HasSubstr(file_)));
  }
}

TEST_F(CheckpointReaderDamage, OfAFileThatIsMissingIsNamed) {
  std::filesystem::remove(file_);

  const Status status = read(0, kRows);

  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("variable \"w\""), HasSubstr(file_), HasSubstr("No such file")));
}

TEST_F(CheckpointReaderDamage, OfAShardThatIsNotWantedDoesNotMatter) {
  std::filesystem::remove(file_);

  EXPECT_TRUE(read(0, 4).ok());
  EXPECT_FALSE(read(0, 5).ok());
}

TEST_F(CheckpointReaderDamage, OfTheIndexIsNamed) {
  write_file(path_ + "/index.json", "{");
  EXPECT_EQ(caught([&] { CheckpointReader reader(path_); }).code(), StatusCode::kDataLoss);

  std::filesystem::remove(path_ + "/index.json");
  const Status status = caught([&] { CheckpointReader reader(path_); });
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("index.json\": open: No such file"));
}

TEST_F(CheckpointReaderDamage, IsFoundByEveryThread) {
  std::string flipped = whole_;
  flipped.back() ^= 1;
  write_file(file_, flipped);
  CheckpointReader reader(path_);
  std::vector<StatusCode> codes(4);

  {
    std::vector<std::jthread> threads;
    for (StatusCode& code : codes) {
      threads.emplace_back([&reader, &code] {
        EXPECT_EQ(read_rows(reader, 1, 2), rows_of_step(5, 1, 2));
        code = caught([&] { read_rows(reader, 0, kRows); }).code();
      });
    }
  }

  EXPECT_THAT(codes, ::testing::Each(StatusCode::kDataLoss));
}

}  // namespace
}  // namespace muster
