#include <gmock/gmock.h>

#include "muster/data/dataset.pb.h"
#include "muster/data/files/record_reader.h"
#include "muster/data/files/tfrecord_writer.h"
#include "muster/data/sources/sources.h"
#include "muster/data/test_elements.h"
#include "muster/io/test_files.h"

namespace muster::cache_source_test {
namespace {

using namespace testing_support;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CsvFormat one_number() { return {.columns = {{.name = "x", .type = CsvColumn::Type::kInt64}}}; }

class FileCache : public testing::Test {
 protected:
  // Counts how often an element was made.
  Dataset counted(int64_t end) {
    return Dataset::generator([this, end] {
      return [this, end, next = int64_t{0}]() mutable -> std::optional<Element> {
        if (next == end) return std::nullopt;
        ++made_;
        return Element{torch::tensor(next++), torch::ones({2})};
      };
    });
  }

  const ScopedDirectory directory_;
  const std::string path_ = directory_.path("cache");
  int made_ = 0;
};

TEST_F(FileCache, KeepsTheFirstWholeRoundForLaterRoundsAndPrograms) {
  const Dataset cached = counted(4).cache(path_);

  EXPECT_THAT(numbers_of(cached.repeat(3)), ElementsAre(0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3));
  EXPECT_EQ(made_, 4);
  EXPECT_THAT(numbers_of(counted(4).cache(path_)), ElementsAre(0, 1, 2, 3)) << "another program";
  EXPECT_EQ(made_, 4);
  EXPECT_THAT(names_in(directory_.path()), ElementsAre("cache"));
}

TEST_F(FileCache, BringsBackEveryKindOfColumn) {
  const Dataset all = Dataset::zip({Dataset::tensors({torch::rand({3, 2}).to(torch::kBFloat16), torch::zeros({3, 0})}),
                                    Dataset::synthetic_digits(3)});

  const auto first = elements_of(all.cache(path_).repeat(2));
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < first[i].size(); ++j) {
      EXPECT_TRUE(torch::equal(first[i][j], first[i + 3][j])) << i << " " << j;
      EXPECT_EQ(first[i][j].dtype(), first[i + 3][j].dtype());
    }
  }
}

TEST_F(FileCache, KeepsStrings) {
  write_file(directory_.path("lines"), "5\n6\n");
  const Dataset lines = Dataset::text_lines({directory_.path("lines")});
  auto parsed = [](const Dataset& records) { return numbers_of(records.parse_csv(one_number())); };

  EXPECT_THAT(parsed(lines.cache(path_).repeat(2)), ElementsAre(5, 6, 5, 6));
  EXPECT_THAT(parsed(lines.cache(path_)), ElementsAre(5, 6));
  EXPECT_THAT(parsed(lines.batch(2).cache(directory_.path("batches")).repeat(2)), ElementsAre(5, 6, 5, 6));
}

TEST_F(FileCache, IsNotMadeOfARoundThatIsNotWhole) {
  const Dataset cached = counted(4).cache(path_);

  EXPECT_THAT(numbers_of(cached.take(2).repeat(2)), ElementsAre(0, 1, 0, 1));

  EXPECT_THAT(names_in(directory_.path()), IsEmpty());
  EXPECT_EQ(made_, 4);
}

TEST_F(FileCache, IsNotMadeOfARoundWithAnError) {
  const Dataset failing = Dataset::generator([] {
    return [next = 0]() mutable -> std::optional<Element> {
      if (++next == 2) throw std::runtime_error("no second one");
      if (next == 4) return std::nullopt;
      return Element{torch::tensor(next)};
    };
  });
  auto source = failing.cache(path_).open(local_worker());

  EXPECT_TRUE(source->next());
  EXPECT_THROW(source->next(), Error);
  EXPECT_TRUE(source->next());
  EXPECT_FALSE(source->next());
  EXPECT_THAT(names_in(directory_.path()), IsEmpty());
}

TEST_F(FileCache, MayBeMadeByTwoAtOnce) {
  auto one = counted(3).cache(path_).repeat(2).open(local_worker());
  auto two = counted(3).cache(path_).repeat(2).open(local_worker());
  Numbers numbers;
  for (int i = 0; i < 6; ++i) {
    for (ElementSource* source : {one.get(), two.get()}) numbers.push_back(source->next()->at(0).item<int64_t>());
  }

  EXPECT_THAT(numbers, ElementsAre(0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2));
  EXPECT_EQ(made_, 6);
  EXPECT_THAT(names_in(directory_.path()), ElementsAre("cache"));
}

TEST_F(FileCache, OfAnotherDatasetIsAnError) {
  auto numbers = [](int64_t end) { return Dataset::range(end).map([](at::Tensor x) { return x + 1; }); };
  elements_of(numbers(3).cache(path_));

  EXPECT_THAT(error_of(StatusCode::kFailedPrecondition, [&] { elements_of(numbers(4).cache(path_)); }),
              AllOf(HasSubstr(path_), HasSubstr("cache of another dataset")));
  EXPECT_THAT(error_of(StatusCode::kFailedPrecondition,
                       [&] { elements_of(Dataset::range(3).map([](at::Tensor x) { return x + 2; }).cache(path_)); }),
              HasSubstr(path_));
  EXPECT_THAT(error_of(StatusCode::kFailedPrecondition,
                       [&] { elements_of(Dataset::tensors({torch::arange(1, 4)}).cache(path_)); }),
              HasSubstr(path_));
}

TEST_F(FileCache, IsOfTheSameDatasetWhateverItsThreadsSeedsAndTheProcessThatOpensIt) {
  auto numbers = [&](int threads, uint64_t seed) {
    auto plus_one = [](at::Tensor x) { return x + 1; };
    return Dataset::range(5).batch(2).map(plus_one, {threads}).shuffle(1, seed).prefetch(threads).cache(path_);
  };
  elements_of(numbers(1, 1));

  EXPECT_THAT(numbers_of(numbers(3, 2)), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(numbers_of(parse_dataset(numbers(3, 2).serialize())), ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(FileCache, KnowsTheTensorsOfItsDataset) {
  elements_of(Dataset::tensors({torch::zeros({3})}).cache(path_));

  EXPECT_THAT(error_of(StatusCode::kFailedPrecondition,
                       [&] { elements_of(Dataset::tensors({torch::ones({3})}).cache(path_)); }),
              HasSubstr("another dataset"));
}

TEST_F(FileCache, ThatIsDamagedIsAnErrorThatNamesIt) {
  const Dataset cached = Dataset::range(3).cache(path_);
  elements_of(cached);
  const std::string whole = read_file(path_);

  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    write_file(path_, whole.substr(0, bytes));
    EXPECT_THAT(error_of(StatusCode::kDataLoss, [&] { elements_of(cached); }), HasSubstr(path_)) << bytes;
  }
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    write_file(path_, damaged);
    EXPECT_THAT(error_of(StatusCode::kDataLoss, [&] { elements_of(cached); }), HasSubstr(path_)) << bit;
  }
  write_file(path_, whole + whole);
  EXPECT_THAT(error_of(StatusCode::kDataLoss, [&] { elements_of(cached); }), HasSubstr(path_));
}

TEST_F(FileCache, OfAStrangerIsReadWithoutTrust) {
  const Dataset cached = Dataset::range(1).cache(path_);
  elements_of(cached);
  std::vector<std::string> records;
  const auto reader = open_records(path_, {.kind = RecordFormat::Kind::kTfRecord});
  while (auto record = reader->next()) records.emplace_back(*record);
  ASSERT_EQ(records.size(), 3);
  auto error_with = [&](const std::string& element, const std::string& end) {
    std::filesystem::remove(path_);
    TfRecordWriter writer(path_);
    for (const std::string& record : {records[0], element, end}) writer.write(record);
    writer.close();
    return error_of(StatusCode::kDataLoss, [&] { elements_of(cached); });
  };
  proto::Dataset::Columns huge;
  huge.add_columns()->mutable_tensor()->mutable_spec()->add_sizes(int64_t{1} << 60);
  proto::Dataset::Columns strings;
  strings.add_columns()->mutable_strings()->add_sizes(1000);

  EXPECT_THAT(error_with("e" + huge.SerializeAsString(), records[2]), HasSubstr("after 0 elements"));
  EXPECT_THAT(error_with("e" + strings.SerializeAsString(), records[2]), HasSubstr("no shape [1000]"));
  EXPECT_THAT(error_with("e\xff", records[2]), HasSubstr("it is no element"));
  EXPECT_THAT(error_with("", records[2]), HasSubstr("another end"));
  EXPECT_THAT(error_with(records[1], "z2"), HasSubstr("after 1 elements"));
}

TEST_F(FileCache, LeavesOtherFilesAlone) {
  const Dataset cached = counted(2).cache(path_);
  auto source = cached.open(local_worker());
  EXPECT_TRUE(source->next());
  EXPECT_TRUE(source->next());
  write_file(path_, "mine");

  EXPECT_FALSE(source->next());

  EXPECT_EQ(read_file(path_), "mine");
  EXPECT_THAT(names_in(directory_.path()), ElementsAre("cache"));
  EXPECT_THAT(error_of(StatusCode::kDataLoss, [&] { elements_of(cached); }), HasSubstr(path_));
}

TEST_F(FileCache, NeedsNoInputOnceItIsThere) {
  const std::string lines = directory_.path("lines");
  write_file(lines, "5\n6\n");
  const Dataset cached = Dataset::text_lines({lines}).prefetch(1).cache(path_).parse_csv(one_number());
  EXPECT_THAT(numbers_of(cached), ElementsAre(5, 6));

  std::filesystem::remove(lines);

  EXPECT_THAT(numbers_of(cached), ElementsAre(5, 6));
}

TEST_F(FileCache, IsWrittenByAServerBelowItsStorageAlone) {
  const std::string bytes = Dataset::range(3).cache(path_).serialize();

  EXPECT_THAT(error_of(StatusCode::kPermissionDenied,
                       [&] { open_source(bytes, local_worker(), {.readable = {directory_.path()}}); }),
              AllOf(HasSubstr("caches of datasets"), HasSubstr("--storage")));
  EXPECT_THAT(names_in(directory_.path()), IsEmpty());
  EXPECT_EQ(rest_of(*open_source(bytes, local_worker(), {.writable = {directory_.path()}})).size(), 3);
  EXPECT_THAT(names_in(directory_.path()), ElementsAre("cache"));
}

TEST_F(FileCache, HasAFileForEachPartOfTheFiles) {
  for (const char* name : {"1", "2"}) write_file(directory_.path(str_cat(name, ".txt")), str_cat(name, "\n"));
  const Dataset lines = Dataset::text_lines({directory_.path("*.txt")}).shard_hint().cache(path_);
  auto part = [&](int index, ShardPolicy policy) {
    const InputContext context{.num_input_pipelines = 2, .input_pipeline_id = index};
    return numbers_of(lines.shard(context, policy).parse_csv(one_number()));
  };

  for (int round = 0; round < 2; ++round) {
    EXPECT_THAT(part(0, ShardPolicy::kFile), ElementsAre(1));
    EXPECT_THAT(part(1, ShardPolicy::kFile), ElementsAre(2));
  }
  EXPECT_TRUE(std::filesystem::exists(path_ + "-00000-of-00002"));
  for (const int index : {0, 1}) std::filesystem::remove(str_cat(path_, "-0000", index, "-of-00002"));
  EXPECT_THAT(part(0, ShardPolicy::kHint), ElementsAre(1));
  EXPECT_THAT(part(1, ShardPolicy::kHint), ElementsAre(2));
  EXPECT_THAT(part(0, ShardPolicy::kData), ElementsAre(1)) << "of a cache of all";
  EXPECT_THAT(part(1, ShardPolicy::kData), ElementsAre(2));
}

TEST_F(FileCache, WantsAPath) {
  EXPECT_THAT(error_of([] { Dataset::range(3).cache(""); }), HasSubstr("cache: an empty path"));
}

}  // namespace
}  // namespace muster::cache_source_test
