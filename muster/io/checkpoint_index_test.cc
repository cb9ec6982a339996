#include "muster/io/checkpoint_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/io/test_files.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::testing::HasSubstr;

ShardEntry entry(const std::string& variable, int64_t row_offset, int64_t rows, int64_t full_rows) {
  return {.variable = variable,
          .spec = {DType::kFloat, {rows, 3}},
          .full_sizes = {full_rows, 3},
          .row_offset = row_offset,
          .file = "shard-ps.safetensors",
          .crc = 0xFFFFFFFF};
}

CheckpointIndex sound_index() {
  return {.step = 7,
          .metadata = {{"model", "a \"b\""}},
          .entries = {entry("w", 2, 2, 4),
                      entry("w", 0, 2, 4),
                      {.variable = "n",
                       .spec = {DType::kLong, {}},
                       .full_sizes = {},
                       .row_offset = 0,
                       .file = "shard-ps.safetensors",
                       .crc = 1}},
          .files = {{"shard-ps.safetensors", 1234}}};
}

std::string complaint(std::vector<ShardEntry> entries) {
  return complaint_about(CheckpointIndex{.step = 1, .entries = std::move(entries)}).value_or("");
}

Status parse(const std::string& text) {
  return caught([&] { (void)checkpoint_index_from_json(text, "index"); });
}

TEST(CheckpointIndex, ComesBackFromItsText) {
  EXPECT_EQ(checkpoint_index_from_json(to_json(sound_index()), "index"), sound_index());
  EXPECT_EQ(checkpoint_index_from_json(to_json({.step = 0}), "index"), CheckpointIndex{.step = 0});
}

TEST(CheckpointIndex, IsRefusedWhenAnyBitIsFlippedOrTheEndIsMissing) {
  const std::string whole = to_json(sound_index());

  for (size_t bit = 0; bit < (whole.size() - 1) * 8; ++bit) {  // but the end of the line
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    EXPECT_EQ(parse(flipped).code(), StatusCode::kDataLoss) << bit;
  }
  for (size_t length = 0; length + 1 < whole.size(); ++length) {
    EXPECT_EQ(parse(whole.substr(0, length)).code(), StatusCode::kDataLoss) << length;
  }
}

TEST(CheckpointIndex, IsRefusedWhenItIsNotAnIndex) {
  EXPECT_THAT(parse("[]").message(), HasSubstr("index: "));
  EXPECT_EQ(parse("{}").code(), StatusCode::kDataLoss);
  EXPECT_THAT(parse(std::string(1'000'000, '[')).message(), HasSubstr("too many levels"));
}

TEST(CheckpointIndex, OfALaterVersionIsNotCalledDamaged) {
  Status status = parse(R"({"checksum":"c93007bf","format":"muster checkpoint","version":3})");

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("version 3, expected 1 to 2"));
}

TEST(CheckpointIndex, HoldsEveryRowOnce) {
  EXPECT_EQ(complaint({entry("w", 2, 2, 4), entry("w", 0, 2, 4)}), "");
  EXPECT_EQ(complaint({entry("w", 0, 0, 4), entry("w", 0, 4, 4), entry("w", 4, 0, 4), entry("w", 1, 0, 4)}), "");
  EXPECT_EQ(complaint({entry("w", 0, 0, 0)}), "");
  EXPECT_THAT(complaint({entry("w", 2, 2, 4)}), HasSubstr("\"w\": rows 0 to 1 are missing"));
  EXPECT_THAT(complaint({entry("w", 0, 1, 4), entry("w", 3, 1, 4)}), HasSubstr("rows 1 to 2 are missing"));
  EXPECT_THAT(complaint({entry("w", 0, 3, 4)}), HasSubstr("rows 3 to 3 are missing"));
  EXPECT_THAT(complaint({entry("w", 0, 3, 4), entry("w", 2, 2, 4)}), HasSubstr("row 2 is there twice"));
  EXPECT_THAT(complaint({entry("w", 0, 2, 4), entry("w", 2, 2, 5)}), HasSubstr("not slices of one tensor"));
}

TEST(CheckpointIndex, HoldsOnlySlicesThatLieInTheirVariable) {
  ShardEntry other_row = entry("w", 0, 4, 4);
  other_row.spec.sizes = {4, 2};
  ShardEntry other_rank = entry("w", 0, 4, 4);
  other_rank.spec.sizes = {4};
  ShardEntry second_scalar{.variable = "n",
                           .spec = {DType::kLong, {}},
                           .full_sizes = {},
                           .row_offset = 1,
                           .file = "shard-a.safetensors",
                           .crc = 0};
  ShardEntry huge = entry("w", 0, 4, 4);
  huge.full_sizes = huge.spec.sizes = {int64_t{1} << 62, int64_t{1} << 62};
  ShardEntry type = entry("w", 0, 4, 4);
  type.spec.dtype = DType::kComplexDouble;

  EXPECT_THAT(complaint({entry("w", 1, 4, 4)}), HasSubstr("not inside float32[4, 3]"));
  EXPECT_THAT(complaint({entry("w", -1, 4, 4)}), HasSubstr("not inside"));
  EXPECT_THAT(complaint({other_row}), HasSubstr("not inside"));
  EXPECT_THAT(complaint({other_rank}), HasSubstr("not inside"));
  EXPECT_THAT(complaint({second_scalar}), HasSubstr("not inside"));
  EXPECT_THAT(complaint({huge}), HasSubstr("no size in bytes"));
  EXPECT_THAT(complaint({type}), HasSubstr("complex128 cannot be stored"));
}

TEST(CheckpointIndex, NamesNoFileOutsideOfItsCheckpoint) {
  for (const char* file : {"", "index.json", "../shard-a.safetensors", "shard-/../../a.safetensors", "/etc/passwd"}) {
    ShardEntry outside = entry("w", 0, 4, 4);
    outside.file = file;

    EXPECT_THAT(complaint({outside}), HasSubstr("not a name of a shard file")) << file;
  }
}

TEST(ShardEntry, HasThePlainNameInItsFileOnlyWhenItIsWhole) {
  EXPECT_EQ(entry("w", 0, 4, 4).tensor_name(), "w");
  EXPECT_EQ(entry("w", 2, 2, 4).tensor_name(), "w[2:4]");
}

}  // namespace
}  // namespace muster
