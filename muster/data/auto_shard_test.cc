#include <gmock/gmock.h>
#include <torch/torch.h>

#include "muster/data/auto_shard.h"
#include "muster/data/dataset_node.h"
#include "muster/data/test_elements.h"
#include "muster/io/test_files.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing_support::elements_of;
using testing_support::error_of;
using testing_support::Numbers;
using testing_support::numbers_of;
using testing_support::ScopedDirectory;
using testing_support::write_file;

InputContext part_of(int pipelines, int index) {
  return {.num_input_pipelines = pipelines, .input_pipeline_id = index};
}

// Ten files of ten lines: 0 to 9 in the first, 10 to 19 in the second, …
class AutoShard : public testing::Test {
 protected:
  AutoShard() {
    for (int file = 0; file < 10; ++file) {
      std::string text;
      for (int line = 0; line < 10; ++line) str_append(text, 10 * file + line, "\n");
      write_file(directory_.path(str_cat("f", file)), text);
    }
  }
  Dataset lines() const {
    return Dataset::text_lines({directory_.path("f*")})
        .parse_csv({.columns = {{.name = "x", .type = CsvColumn::Type::kInt64}}});
  }
  static Numbers of_files(const std::vector<int>& files) {
    Numbers numbers;
    for (const int file : files) {
      for (int line = 0; line < 10; ++line) numbers.push_back(10 * file + line);
    }
    return numbers;
  }

  const ScopedDirectory directory_;
};

TEST_F(AutoShard, ByFilesTakesEveryNthFile) {
  EXPECT_EQ(numbers_of(lines().shard(part_of(5, 3), ShardPolicy::kFile)), of_files({3, 8}));
  EXPECT_EQ(numbers_of(lines().shard(part_of(5, 0), ShardPolicy::kFile)), of_files({0, 5}));
  EXPECT_EQ(numbers_of(lines().shard(part_of(5, 0), ShardPolicy::kAuto)), of_files({0, 5}));
}

TEST_F(AutoShard, ByFilesReachesThroughZipConcatenateAndMap) {
  const Dataset twice = Dataset::concatenate({lines(), lines()}).map([](at::Tensor x) { return x + 1'000; });
  const Dataset pairs = Dataset::zip({lines(), lines().map([](at::Tensor x) { return x; }, {}, {"other"})});

  Numbers expected;
  for (int round = 0; round < 2; ++round) {
    for (const int64_t number : of_files({3, 8})) expected.push_back(number + 1'000);
  }
  EXPECT_EQ(numbers_of(twice.shard(part_of(5, 3), ShardPolicy::kFile)), expected);
  EXPECT_EQ(numbers_of(pairs.shard(part_of(5, 3), ShardPolicy::kFile)), of_files({3, 8}));
}

TEST_F(AutoShard, ByElementsTakesEveryNthOne) {
  const Numbers first = numbers_of(lines().shard(part_of(5, 0), ShardPolicy::kData));
  ASSERT_EQ(first.size(), 20u);
  EXPECT_EQ(Numbers(first.begin(), first.begin() + 4), Numbers({0, 5, 10, 15}));
  EXPECT_EQ(numbers_of(Dataset::range(4).shard(part_of(2, 0), ShardPolicy::kAuto)), Numbers({0, 2}));
  EXPECT_EQ(numbers_of(Dataset::range(4).shard(part_of(2, 1), ShardPolicy::kAuto)), Numbers({1, 3}));
  EXPECT_EQ(numbers_of(lines().shard(part_of(5, 2), ShardPolicy::kOff)).size(), 100u);
}

TEST_F(AutoShard, ByFilesWantsFiles) {
  EXPECT_THAT(error_of(StatusCode::kNotFound, [] { Dataset::range(4).shard(part_of(2, 0), ShardPolicy::kFile); }),
              HasSubstr("files"));
  EXPECT_THAT(error_of(StatusCode::kNotFound,
                       [&] { Dataset::zip({lines(), Dataset::range(4)}).shard(part_of(2, 0), ShardPolicy::kFile); }),
              HasSubstr("files"));
}

TEST_F(AutoShard, GivesNothingToAPipelineBeyondTheFiles) {
  EXPECT_TRUE(elements_of(lines().shard(part_of(500, 499), ShardPolicy::kFile)).empty());
}

TEST_F(AutoShard, RefusesPartsWithoutAnElement) {
  EXPECT_THAT(error_of([] { elements_of(Dataset::range(5).shard(part_of(10, 7), ShardPolicy::kData)); }),
              HasSubstr("10 pipelines"));
  EXPECT_TRUE(elements_of(Dataset::range(0).shard(part_of(10, 7), ShardPolicy::kData)).empty());
  EXPECT_THAT(error_of([] { Dataset::range(5).shard(part_of(2, 2), ShardPolicy::kData); }), HasSubstr("index 2"));
}

// Of how many elements the ranges that are handed out are multiples.
int64_t handed_out_by(const Dataset& dataset) {
  int64_t rows = 0;
  const Dataset shared = dataset.shard({}, ShardPolicy::kDynamic);
  any_step(*shared.node(), [&](const DatasetNode& step) {
    if (const auto* op = std::get_if<HandOutOp>(&step.op())) rows = op->rows;
    return false;
  });
  return rows;
}

TEST_F(AutoShard, HandsOutWholeBatches) {
  const Dataset rows = Dataset::range(100);
  const auto same = [](at::Tensor x) { return x; };
  const auto odd = [](at::Tensor x) { return x.remainder(2).eq(1); };

  EXPECT_EQ(handed_out_by(rows), 1);
  EXPECT_EQ(handed_out_by(rows.shuffle(100).map(same).batch(32).prefetch(2)), 32);
  EXPECT_EQ(handed_out_by(rows.batch(32).map(same).batch(4)), 128);
  EXPECT_EQ(handed_out_by(rows.padded_batch(16)), 16);
  EXPECT_EQ(handed_out_by(rows.batch(4).rebatch(8)), 4) << "a batch may have any size before it is taken apart";
  EXPECT_EQ(handed_out_by(rows.filter(odd).batch(8)), 1) << "how many are left depends on which they are";
  EXPECT_EQ(handed_out_by(rows.batch(8).filter(odd)), 8);
  EXPECT_EQ(handed_out_by(rows.map_registered("made elsewhere").batch(8)), 8);
  EXPECT_EQ(handed_out_by(rows.batch(int64_t{1} << 62).batch(4)), int64_t{1} << 62);
}

TEST_F(AutoShard, ByHintsTakesItWhereItIsAskedTo) {
  const Dataset hinted = Dataset::range(8).shard_hint().map([](at::Tensor x) { return x * 10; });

  EXPECT_EQ(numbers_of(hinted.shard(part_of(4, 1), ShardPolicy::kHint)), Numbers({10, 50}));
  EXPECT_EQ(numbers_of(hinted), Numbers({0, 10, 20, 30, 40, 50, 60, 70}));
  EXPECT_EQ(numbers_of(Dataset::range(3).shard(part_of(4, 1), ShardPolicy::kHint)), Numbers({0, 1, 2}));
}

TEST_F(AutoShard, StandsBeforePrefetch) {
  const Dataset counted = Dataset::generator([] {
    return [next = int64_t{0}]() mutable -> std::optional<Element> {
      if (next == 100) return std::nullopt;
      return Element{torch::tensor(next++)};
    };
  });

  const Dataset part = counted.prefetch(2).shard(part_of(50, 49), ShardPolicy::kData);

  EXPECT_EQ(numbers_of(part), Numbers({49, 99}));
}

TEST_F(AutoShard, SendsEachPipelineItsTensorsOnly) {
  const Dataset rows = Dataset::tensors({torch::arange(100'000), torch::ones({100'000})});

  for (const Dataset& part : {rows.shard(10, 3), rows.shard(part_of(10, 3), ShardPolicy::kAuto)}) {
    const std::string bytes = part.batch(4).serialize();

    EXPECT_LT(bytes.size(), 130'000u) << "a tenth of 1.2 MB";
    EXPECT_EQ(numbers_of(parse_dataset(bytes)), numbers_of(part));
  }
  EXPECT_EQ(numbers_of(parse_dataset(rows.take(5).shard(2, 1).serialize())), Numbers({1, 3}));
}

TEST_F(AutoShard, KnowsWhatIsAsLongEachTime) {
  const Dataset rows = Dataset::range(100);
  auto odd = [](at::Tensor x) { return x.remainder(2).eq(1); };

  EXPECT_TRUE(
      keeps_its_length(rows.shuffle(10).map([](at::Tensor x) { return x + 1; }).batch(4).repeat(2).prefetch(1)));
  EXPECT_TRUE(keeps_its_length(lines().filter([](at::Tensor) { return torch::tensor(true); }).cache().batch(2)));
  EXPECT_FALSE(keeps_its_length(rows.filter(odd)));
  EXPECT_FALSE(keeps_its_length(lines()));
  EXPECT_FALSE(keeps_its_length(Dataset::concatenate({rows, rows.filter(odd)}).take(7)));
}

TEST_F(AutoShard, TracesAFunctionOnceForAllPipelines) {
  int traced = 0;
  const Dataset mapped = lines().map([&traced](at::Tensor x) {
    ++traced;
    return x + 1;
  });

  for (int i = 0; i < 3; ++i) elements_of(mapped.shard(part_of(3, i), ShardPolicy::kFile));

  EXPECT_EQ(traced, 1);
}

TEST(HasGenerator, FindsCodeThatMakesElements) {
  const auto make = [] { return [] { return std::optional<Element>(); }; };
  const Dataset made = Dataset::generator(make);

  EXPECT_TRUE(has_generator(made.batch(2)));
  EXPECT_TRUE(has_generator(Dataset::zip({Dataset::range(3), made})));
  EXPECT_TRUE(has_generator(Dataset::registered("somewhere else", {}, {"x"}).batch(2)));
  EXPECT_FALSE(has_generator(Dataset::range(3).map_registered("somewhere else", {}, {}, {"x"}).batch(2)));
  EXPECT_FALSE(has_generator(Dataset::range(3).batch(2)));
}

}  // namespace
}  // namespace muster
