#include "muster/distribute/servers/partitioners.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TensorSpec floats(std::vector<int64_t> sizes) { return {.dtype = DType::kFloat, .sizes = std::move(sizes)}; }

TEST(Partitioners, SpreadLargeVariablesOverAllParameterServers) {
  const Partitioner over_four = spread_over(4);
  auto parts = [&](std::vector<int64_t> sizes) { return over_four(floats(std::move(sizes))); };
  EXPECT_EQ(parts({128}), (std::vector<int64_t>{1}));
  EXPECT_EQ(parts({255, 256}), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(parts({256, 256}), (std::vector<int64_t>{2, 1})) << "256 KiB";
  EXPECT_EQ(parts({784, 128}), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(parts({1'000'000, 16}), (std::vector<int64_t>{4, 1}));
  EXPECT_EQ(parts({2, 1'000'000}), (std::vector<int64_t>{2, 1})) << "no more than there are rows";
  EXPECT_EQ(parts({0, 10}), (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(spread_over(1)(floats({1'000'000, 16})), (std::vector<int64_t>{1, 1}));
}

// The message of the kInvalidArgument that `call` throws; empty if it throws nothing.
template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    return error.status().message();
  }
  return {};
}

TEST(FixedShardsPartitioner, CutsTheFirstAxis) {
  EXPECT_THAT(FixedShardsPartitioner{2}(floats({10, 3})), ElementsAre(2, 1));
}

TEST(FixedShardsPartitioner, MakesNoMoreShardsThanRows) {
  EXPECT_THAT(FixedShardsPartitioner{8}(floats({3, 5})), ElementsAre(3, 1));
  EXPECT_THAT(FixedShardsPartitioner{8}(floats({0, 5})), ElementsAre(1, 1));
}

TEST(MinSizePartitioner, MakesAsManyShardsAsMayBeAndAreLargeEnough) {
  EXPECT_THAT((MinSizePartitioner{.min_shard_bytes = 4, .max_shards = 2}(floats({6, 1}))), ElementsAre(2, 1));
  EXPECT_THAT((MinSizePartitioner{.min_shard_bytes = 4, .max_shards = 10}(floats({6, 1}))), ElementsAre(6, 1));
  EXPECT_THAT((MinSizePartitioner{.min_shard_bytes = 16, .max_shards = 10}(floats({6, 1}))), ElementsAre(2, 1));
  EXPECT_THAT((MinSizePartitioner{.min_shard_bytes = 64 << 20, .max_shards = 2}(floats({10}))), ElementsAre(1));
}

TEST(MinSizePartitioner, HasTensorFlowsDefaults) {
  const MinSizePartitioner partitioner;

  EXPECT_EQ(partitioner.min_shard_bytes, 256 * 1024);
  EXPECT_EQ(partitioner.max_shards, 1);
  EXPECT_EQ(partitioner.bytes_per_string, 16);
  EXPECT_THAT(partitioner(floats({1 << 20, 4})), ElementsAre(1, 1));
}

TEST(MaxSizePartitioner, MakesAsFewShardsAsAreSmallEnough) {
  EXPECT_THAT((MaxSizePartitioner{.max_shard_bytes = 4}(floats({6, 1}))), ElementsAre(6, 1));
  EXPECT_THAT((MaxSizePartitioner{.max_shard_bytes = 4, .max_shards = 2}(floats({6, 1}))), ElementsAre(2, 1));
  EXPECT_THAT((MaxSizePartitioner{.max_shard_bytes = 1024}(floats({6, 1}))), ElementsAre(1, 1));
  EXPECT_THAT((MaxSizePartitioner{.max_shard_bytes = 1}(floats({6, 100}))), ElementsAre(6, 1));
  EXPECT_THAT((MaxSizePartitioner{.max_shard_bytes = 1}(floats({6, 0}))), ElementsAre(1, 1));
}

TEST(Partitioners, RefuseSettingsThatAreNotPositive) {
  const TensorSpec spec = floats({6, 1});
  const auto says = [](const char* name, const char* value) {
    return AllOf(HasSubstr("must be positive"), HasSubstr(name), HasSubstr(value));
  };

  EXPECT_THAT(refusal_of([&] { FixedShardsPartitioner{0}(spec); }), says("num_shards", "0"));
  EXPECT_THAT(refusal_of([&] { MinSizePartitioner{.min_shard_bytes = 0}(spec); }), says("min_shard_bytes", "0"));
  EXPECT_THAT(refusal_of([&] { MinSizePartitioner{.max_shards = -3}(spec); }), says("max_shards", "-3"));
  EXPECT_THAT(refusal_of([&] { MinSizePartitioner{.bytes_per_string = 0}(spec); }), says("bytes_per_string", "0"));
  EXPECT_THAT(refusal_of([&] { MaxSizePartitioner{.max_shard_bytes = -1}(spec); }), says("max_shard_bytes", "-1"));
  EXPECT_THAT(refusal_of([&] { MaxSizePartitioner{.max_shard_bytes = 1, .max_shards = 0}(spec); }),
              says("max_shards", "0"));
  EXPECT_THAT(refusal_of([&] { MaxSizePartitioner{.max_shard_bytes = 1, .bytes_per_string = 0}(spec); }),
              says("bytes_per_string", "0"));
  EXPECT_THAT(refusal_of([&] { fixed_size_partitioner(-1)(spec); }), says("num_shards", "-1"));
  EXPECT_THAT(refusal_of([&] { variable_axis_size_partitioner({.max_shard_bytes = 0})(spec); }),
              says("max_shard_bytes", "0"));
}

TEST(Partitioners, RefuseATensorWithoutTheAxis) {
  EXPECT_THAT(refusal_of([] { FixedShardsPartitioner{2}(floats({})); }), HasSubstr("axis 0"));
  EXPECT_THAT(refusal_of([] { MinSizePartitioner{}(floats({})); }), HasSubstr("axis 0"));
  EXPECT_THAT(refusal_of([] { fixed_size_partitioner(2, 1)(floats({4})); }), HasSubstr("axis 1"));
  EXPECT_THAT(refusal_of([] { variable_axis_size_partitioner({.max_shard_bytes = 1, .axis = -1})(floats({4})); }),
              HasSubstr("axis -1"));
}

TEST(FixedSizePartitioner, CutsTheAxisThatIsAskedFor) {
  EXPECT_THAT(fixed_size_partitioner(5)(floats({10, 10})), ElementsAre(5, 1));
  EXPECT_THAT(fixed_size_partitioner(4)({.dtype = DType::kLong, .sizes = {20}}), ElementsAre(4));
  EXPECT_THAT(fixed_size_partitioner(5, 1)(floats({10, 3})), ElementsAre(1, 3));
}

TEST(Partitioners, CutAnotherAxisIfAsked) {
  const TensorSpec spec = floats({4, 8, 2});

  EXPECT_THAT(FixedShardsPartitioner{3}(spec, 1), ElementsAre(1, 3, 1));
  EXPECT_THAT(FixedShardsPartitioner{3}(spec, 2), ElementsAre(1, 1, 2));
  EXPECT_THAT((MinSizePartitioner{.min_shard_bytes = 64, .max_shards = 10}(spec, 1)), ElementsAre(1, 4, 1));
  EXPECT_THAT((MaxSizePartitioner{.max_shard_bytes = 64}(spec, 1)), ElementsAre(1, 4, 1));
  EXPECT_THAT(refusal_of([&] { FixedShardsPartitioner{2}(spec, 3); }), HasSubstr("axis 3"));
  EXPECT_THAT(refusal_of([&] { MinSizePartitioner{}(spec, -1); }), HasSubstr("axis -1"));
}

TEST(MinMaxVariablePartitioner, AgreesWithTensorFlow) {
  const TensorSpec spec = floats({1024, 1024});  // 16 times the smallest slice

  EXPECT_THAT(min_max_variable_partitioner({.max_partitions = 100})(spec), ElementsAre(16, 1));
  EXPECT_THAT(min_max_variable_partitioner({.max_partitions = 7})(spec), ElementsAre(7, 1));
  EXPECT_THAT(min_max_variable_partitioner({})(spec), ElementsAre(1, 1));
  EXPECT_THAT(min_max_variable_partitioner({.max_partitions = 100, .axis = 1, .min_slice_bytes = 1 << 20})(spec),
              ElementsAre(1, 4));
  EXPECT_THAT(min_max_variable_partitioner({.max_partitions = 100, .min_slice_bytes = 1})(floats({3, 5})),
              ElementsAre(3, 1));
  EXPECT_THAT(refusal_of([&] { min_max_variable_partitioner({.axis = 2})(spec); }), HasSubstr("axis 2"));
}

TEST(VariableAxisSizePartitioner, AgreesWithTensorFlow) {
  const TensorSpec spec = floats({4, 8, 16, 32});
  const auto parts = [&](VariableAxisSizeOptions options) { return variable_axis_size_partitioner(options)(spec); };

  EXPECT_THAT(parts({.max_shard_bytes = 131072, .axis = 0}), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(parts({.max_shard_bytes = 65536, .axis = 1}), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(parts({.max_shard_bytes = 32768, .axis = 2}), ElementsAre(1, 1, 2, 1));
  EXPECT_THAT(parts({.max_shard_bytes = 2048, .axis = 3}), ElementsAre(1, 1, 1, 32));
  EXPECT_THAT(parts({.max_shard_bytes = 1024, .axis = 3}), ElementsAre(1, 1, 1, 32));
  EXPECT_THAT(parts({.max_shard_bytes = 1024, .axis = 3, .max_shards = 33}), ElementsAre(1, 1, 1, 32));
  EXPECT_THAT(parts({.max_shard_bytes = 1024, .axis = 3, .max_shards = 2}), ElementsAre(1, 1, 1, 2));
}

TEST(VariableAxisSizePartitioner, CountsTheBytesOfTheElementType) {
  // TensorFlow's case is strings of 8 bytes each.
  const TensorSpec spec{.dtype = DType::kDouble, .sizes = {4, 8, 16, 32}};

  EXPECT_THAT(variable_axis_size_partitioner({.max_shard_bytes = 32768, .axis = 3})(spec), ElementsAre(1, 1, 1, 4));
}

TEST(CheckedShards, IsTheNumberOfPartsOfTheFirstAxis) {
  EXPECT_EQ(checked_shards(FixedShardsPartitioner{2}, "w", floats({10, 3})), 2);
  EXPECT_EQ(checked_shards(fixed_size_partitioner(20), "w", floats({10, 3})), 10);
}

TEST(CheckedShards, IsOneWithoutAPartitionerAndForScalars) {
  EXPECT_EQ(checked_shards(nullptr, "w", floats({10, 3})), 1);
  EXPECT_EQ(checked_shards(FixedShardsPartitioner{2}, "w", floats({})), 1);
  EXPECT_EQ(checked_shards(FixedShardsPartitioner{2}, "w", floats({0, 3})), 1);
}

TEST(CheckedShards, RefusesWhatIsNoCutAlongTheFirstAxis) {
  const auto refusal = [](std::vector<int64_t> parts) {
    return refusal_of([&] { checked_shards([&](const TensorSpec&) { return parts; }, "w", floats({4, 6, 8})); });
  };

  for (const auto& parts : std::vector<std::vector<int64_t>>{
           {}, {2}, {2, 1}, {2, 1, 1, 1}, {0, 1, 1}, {2, -1, 1}, {2, 2, 1}, {1, 2, 1}, {1, 1, 2}, {5, 1, 1}}) {
    EXPECT_THAT(refusal(parts), AllOf(HasSubstr("variable_partitioner"), HasSubstr("\"w\""),
                                      HasSubstr("float32[4, 6, 8]"), HasSubstr("expected")));
  }
  EXPECT_THAT(refusal({2, 2, 1}), HasSubstr("[2, 2, 1]"));
  EXPECT_THAT(refusal({5, 1, 1}), HasSubstr("at most 4 parts"));
}

TEST(ShardRows, GivesTheRemainderToTheFirstShards) {
  EXPECT_THAT(shard_rows(10, 4), ElementsAre(Pair(0, 3), Pair(3, 3), Pair(6, 2), Pair(8, 2)));
  EXPECT_THAT(shard_rows(4, 2), ElementsAre(Pair(0, 2), Pair(2, 2)));
  EXPECT_THAT(shard_rows(1, 2), ElementsAre(Pair(0, 1), Pair(1, 0)));
  EXPECT_THAT(shard_rows(0, 1), ElementsAre(Pair(0, 0)));
}

}  // namespace
}  // namespace muster
