// Datasets of Parquet files: what is done to rows on their way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#ifdef MUSTER_HAS_PARQUET
#include "muster/data/files/test_parquet.h"
#endif

#include "muster/data/dataset.h"
#include "muster/data/dataset_node.h"
#include "muster/data/preprocessing/preprocessing_layers.h"
#include "muster/data/sources/source.h"
#include "muster/data/sources/sources.h"
#include "muster/data/test_elements.h"
#include "muster/io/test_files.h"
#include "muster/runtime/worker/shared_source.h"

namespace muster::dataset_parquet_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::error_of;

#ifdef MUSTER_HAS_PARQUET

using testing_support::elements_of;
using testing_support::float_values;
using testing_support::int64_values;
using testing_support::list_values;
using testing_support::Numbers;
using testing_support::numbers_in;
using testing_support::numbers_of;
using testing_support::ScopedDirectory;
using testing_support::string_values;
using testing_support::write_parquet;

class DatasetParquet : public testing::Test {
 protected:
  // x = first, first + 1, …, y = 2 x, word = "x".
  std::string file(const std::string& name, int64_t first, int64_t count, int64_t rows_of_group = 1'000) const {
    std::vector<std::optional<int64_t>> x;
    std::vector<std::optional<float>> y;
    std::vector<std::optional<std::string>> word;
    for (int64_t i = first; i < first + count; ++i) {
      x.emplace_back(i);
      y.emplace_back(static_cast<float>(2 * i));
      word.emplace_back(std::to_string(i));
    }
    return write_parquet(directory_.path(name),
                         {int64_values("x", x), float_values("y", y), string_values("word", word)}, rows_of_group);
  }
  static Dataset numbers(std::vector<std::string> files, const FileOptions& options = {}) {
    return Dataset::parquet(std::move(files), {.columns = {{.name = "x"}, {.name = "y"}}, .files = options});
  }

  const ScopedDirectory directory_;
};

TEST_F(DatasetParquet, GivesRowsOneByOneAndInBatches) {
  const Dataset rows = numbers({file("a", 0, 5)});

  EXPECT_THAT(rows.column_names(), ElementsAre("x", "y"));
  EXPECT_EQ(numbers_of(rows), Numbers({0, 1, 2, 3, 4}));
  EXPECT_EQ(elements_of(rows)[3][0].dim(), 0);
  const std::vector<Element> batches = elements_of(rows.batch(2));
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_TRUE(batches[1][0].equal(torch::tensor({2, 3}, torch::kLong)));
  EXPECT_TRUE(batches[1][1].equal(torch::tensor({4.0F, 6.0F})));
}

TEST_F(DatasetParquet, ReadsNothingOfColumnsThatAreNotSelected) {
  using List = std::vector<std::optional<int32_t>>;
  const std::string path = write_parquet(
      directory_.path("a"), {int64_values("id", {1, 2, 3}), list_values("tags", {List{1}, List{}, std::nullopt})});
  const Dataset rows = Dataset::parquet({path});

  EXPECT_EQ(numbers_of(rows.select({"id"})), Numbers({1, 2, 3}));
  EXPECT_EQ(numbers_of(rows.select({"id"}).batch(3)), Numbers({1, 2, 3}));
  EXPECT_EQ(numbers_of(parse_dataset(rows.select({"id"}).batch(3).serialize())), Numbers({1, 2, 3}));
  const auto adapter = integer_lookup_adapter();
  rows.batch(2).adapt(*adapter, "id");
  EXPECT_EQ(adapter->finish()->state().values.at("vocabulary").sizes()[0], 3);
}

TEST_F(DatasetParquet, KeepsRowsWholeThroughAShuffle) {
  const Dataset rows = Dataset::parquet({file("a", 0, 300, 70)}, {}, {.threads = 2})
                           .preprocess("word", hashing({.bins = 1'000'000}))
                           .shuffle(50, 7);
  const Dataset plain = Dataset::parquet({directory_.path("a")}).preprocess("word", hashing({.bins = 1'000'000}));

  const std::vector<Element> batches = elements_of(rows.batch(7));
  const std::vector<Element> expected = elements_of(plain.batch(300));

  Numbers seen;
  for (const Element& batch : batches) {
    EXPECT_TRUE(batch[1].equal((batch[0] * 2).to(torch::kFloat)));
    EXPECT_TRUE(batch[2].equal(expected[0][2].index_select(0, batch[0])));
    for (const int64_t x : numbers_in(batch[0])) seen.push_back(x);
  }
  EXPECT_NE(seen, numbers_of(plain));
  std::ranges::sort(seen);
  EXPECT_EQ(seen, numbers_of(plain));
}

TEST_F(DatasetParquet, ReadsAllFilesThatAPatternNamesSeveralInTurn) {
  file("part-2", 20, 3);
  file("part-1", 10, 3);

  EXPECT_EQ(numbers_of(numbers({directory_.path("part-*")})), Numbers({10, 11, 12, 20, 21, 22}));
  EXPECT_EQ(numbers_of(numbers({directory_.path("part-*")}, {.cycle_length = 2, .block_length = 2})),
            Numbers({10, 11, 20, 21, 12, 22}));
  EXPECT_EQ(numbers_of(numbers({directory_.path("part-*")}, {.cycle_length = 2, .block_length = 2}).batch(5, true)),
            Numbers({10, 11, 20, 21, 12}));
  EXPECT_THAT(error_of(StatusCode::kNotFound, [&] { numbers({directory_.path("no-*")}); }), HasSubstr("no-*"));
  EXPECT_THAT(error_of([] { Dataset::parquet({}); }), HasSubstr("no files"));
  EXPECT_THAT(error_of([&] { numbers({directory_.path("part-1")}, {.compression = Compression::kGzip}); }),
              HasSubstr("compression"));
}

TEST_F(DatasetParquet, PadsListsOfDifferentLengths) {
  using List = std::vector<std::optional<int32_t>>;
  const std::string path =
      write_parquet(directory_.path("a"), {list_values("tags", {List{1, 2, 3}, List{}, List{4}, List{5}})});
  const Dataset rows = Dataset::parquet({path});

  const std::vector<Element> padded = elements_of(rows.padded_batch(3));

  EXPECT_TRUE(padded[0][0].equal(torch::tensor({{1, 2, 3}, {0, 0, 0}, {4, 0, 0}}, torch::kInt)));
  EXPECT_EQ(elements_of(rows)[1][0].sizes(), at::IntArrayRef({0}));
  EXPECT_THAT(error_of([&] { elements_of(rows.batch(2)); }), AllOf(HasSubstr("row 1"), HasSubstr("padded_batch")));
  EXPECT_TRUE(elements_of(rows.skip(2).batch(2))[0][0].equal(torch::tensor({{4}, {5}}, torch::kInt)));
}

TEST_F(DatasetParquet, LeavesOutWhatItIsAskedTo) {
  const std::string a =
      write_parquet(directory_.path("a"), {int64_values("x", {0, {}, 2}), float_values("y", {1, 1, 1})});
  const std::string b = write_parquet(directory_.path("b"), {int64_values("x", {10}), int64_values("y", {1})});
  testing_support::write_file(directory_.path("c"), "no Parquet file");
  const std::string d = file("d", 20, 2);
  const std::vector<std::string> files{a, b, directory_.path("c"), directory_.path("none"), d};

  EXPECT_EQ(numbers_of(numbers(files, {.ignore_errors = true})), Numbers({0, 2, 20, 21}));
  EXPECT_EQ(numbers_of(numbers(files, {.ignore_errors = true}).batch(2)), Numbers({0, 2, 20, 21}));
  const std::vector<std::string> bad{directory_.path("c"), directory_.path("none")};
  EXPECT_EQ(numbers_of(numbers({bad[0], bad[1], d}, {.ignore_errors = true})), Numbers({20, 21}))
      << "whichever is the first";
  EXPECT_THAT(error_of(StatusCode::kDataLoss, [&] { numbers(bad, {.ignore_errors = true}); }), HasSubstr("/c\""));
  EXPECT_THAT(error_of(StatusCode::kDataLoss, [&] { numbers({bad[0], d}); }), HasSubstr("/c\""));
  EXPECT_THAT(error_of([&] { elements_of(numbers({a})); }), HasSubstr("row 1: column \"x\" is null"));
  EXPECT_THAT(error_of([&] { elements_of(numbers({d, b})); }), HasSubstr("\"y\" is int64, expected float32"));
}

TEST_F(DatasetParquet, GoesOverTheWireAndReadsOnlyWhereItMay) {
  const Dataset rows =
      Dataset::parquet({file("a", 0, 4)}, {.columns = {{.name = "y", .otherwise = 1.5}, {.name = "x"}}}, {.threads = 2})
          .label("x")
          .batch(2);
  const std::string bytes = rows.serialize();

  const Dataset arrived = parse_dataset(bytes);

  EXPECT_EQ(arrived.serialize(), bytes);
  EXPECT_EQ(arrived.column_names(), rows.column_names());
  EXPECT_EQ(numbers_of(arrived), Numbers({0, 2, 4, 6}));
  auto allowed = open_source(bytes, local_worker(), {.readable = {directory_.path()}});
  EXPECT_EQ(numbers_of(testing_support::rest_of(*allowed)), Numbers({0, 2, 4, 6}));
  error_of(StatusCode::kPermissionDenied,
           [&] { open_source(bytes, local_worker(), {.readable = {"/no/such"}})->next(); });
}

TEST_F(DatasetParquet, ThatComesFromElsewhereIsParsedAsWhatItsFilesHold) {
  const PackedField x{.name = "x", .type = PackedField::Type::kInt64},
      y{.name = "y", .type = PackedField::Type::kFloat};
  const Dataset files = dataset_of(
      FilesOp{.patterns = {file("a", 0, 4)}, .format = {.kind = RecordFormat::Kind::kParquet, .fields = {x}}});
  auto parsed = [](const Dataset& records, const RecordContent& what) {
    return dataset_of(ParseOp{.what = what, .parser = parser_of(what)}, {records.node()});
  };
  using Fields = std::vector<PackedField>;
  const CsvFormat csv{.columns = {{.name = "x", .type = CsvColumn::Type::kFloat}}};

  EXPECT_EQ(numbers_of(parsed(files, Fields{x}).batch(3)), Numbers({0, 1, 2, 3}));
  for (const Dataset& forged : {files, parsed(files, Fields{y}), parsed(files, Fields{x, y}).select({"y"}),
                                parsed(files, csv), parsed(parsed(files, Fields{x}), Fields{x})}) {
    EXPECT_THAT(error_of([&] {
                  open_source(forged.batch(3).serialize(), local_worker(), {.readable = {directory_.path()}})->next();
                }),
                HasSubstr("parse: the files before it hold other columns"));
  }
}

TEST_F(DatasetParquet, IsReadOnceOverAllWorkersHoweverManyThereAre) {
  for (int i = 0; i < 5; ++i) file(str_cat("f", i), 10 * i, 4, 3);
  const Dataset all = numbers({directory_.path("f*")});
  const Numbers expected = numbers_of(all);

  for (const ShardPolicy policy : {ShardPolicy::kFile, ShardPolicy::kData, ShardPolicy::kAuto}) {
    for (int workers = 1; workers <= 6; ++workers) {
      Numbers read;
      for (int i = 0; i < workers; ++i) {
        const Dataset part = all.shard({.num_input_pipelines = workers, .input_pipeline_id = i}, policy);
        for (const int64_t number : numbers_of(part)) read.push_back(number);
      }
      std::ranges::sort(read);
      EXPECT_EQ(read, expected) << workers;
    }
  }
  const Dataset second = all.shard({.num_input_pipelines = 5, .input_pipeline_id = 1}, ShardPolicy::kAuto);
  EXPECT_EQ(numbers_of(second), Numbers({10, 11, 12, 13})) << "a file each";
}

TEST_F(DatasetParquet, IsHandedOutFileByFile) {
  for (int i = 0; i < 3; ++i) file(str_cat("f", i), 10 * i, 2);
  const Dataset shared = numbers({directory_.path("f*")}).shard({}, ShardPolicy::kDynamic);
  auto source = open_source(shared.serialize(), local_worker(), {.readable = {directory_.path()}});
  // Gives it the last file, then says that others have the rest.
  std::function<void(const Status&, PartsWanted)> answer = [&](const Status& status, PartsWanted wanted) {
    if (!status.ok()) return;
    EXPECT_EQ(wanted.parts, 3);
    PartsGiven given{.request = wanted.request, .what = PartsGiven::What::kRoundOver};
    if (wanted.request == 1) given = {.request = 1, .what = PartsGiven::What::kPart, .part = {0, 2}};
    if (wanted.ended) given.what = PartsGiven::What::kEnd;
    source->hand_out(given, nullptr, answer);
  };
  source->hand_out({}, nullptr, answer);

  EXPECT_EQ(numbers_of(testing_support::rest_of(*source)), Numbers({20, 21}));
  source->close();
}

TEST_F(DatasetParquet, GoesOnWhereItWas) {
  for (int i = 0; i < 3; ++i) file(str_cat("f", i), 10 * i, 7, 3);
  const Dataset all = numbers({directory_.path("f*")});
  for (const Dataset& rows : {all, all.batch(2), all.shuffle(5).batch(4), all.repeat(3).shuffle(4, 1)}) {
    for (const int taken : {0, 1, 4, 9}) {
      SharedSource first(rows.open(local_worker()));
      for (int i = 0; i < taken; ++i) first.next();
      SharedSource second(rows.from(first.position()).open(local_worker()));
      while (const auto expected = first.next()) {
        const auto element = second.next();
        ASSERT_TRUE(element);
        EXPECT_TRUE((*element)[0].equal((*expected)[0]));
      }
      EXPECT_FALSE(second.next());
    }
  }
}

#else

TEST(DatasetParquet, SaysHowToBuildItWhereItIsNot) {
  EXPECT_THAT(error_of(StatusCode::kFailedPrecondition, [] { Dataset::parquet({"a.parquet"}); }),
              AllOf(HasSubstr("without Apache Arrow"), HasSubstr("scripts/setup parquet")));
}

TEST(DatasetParquet, ThatComesFromElsewhereIsRefusedWhereItCannotBeReadEvenIfErrorsAreIgnored) {
  const Dataset sent = dataset_of(FilesOp{
      .patterns = {"a.parquet"},
      .format = {.kind = RecordFormat::Kind::kParquet, .fields = {{.name = "x", .type = PackedField::Type::kInt64}}},
      .ignore_errors = true});
  const std::string bytes = sent.serialize();

  EXPECT_EQ(parse_dataset(bytes).serialize(), bytes);
  EXPECT_THAT(error_of(StatusCode::kFailedPrecondition, [&] { open_source(bytes, local_worker()); }),
              HasSubstr("without Apache Arrow"));
}

#endif

}  // namespace
}  // namespace muster::dataset_parquet_test
