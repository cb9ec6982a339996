#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>

#include "muster/data/files/example_builder.h"
#include "muster/data/files/tfrecord_writer.h"
#include "muster/data/preprocessing/preprocessing_layers.h"
#include "muster/data/test_elements.h"
#include "muster/io/test_files.h"
#include "muster/trace/function.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::elements_of;
using testing_support::error_of;
using testing_support::Numbers;
using testing_support::numbers_in;
using testing_support::numbers_of;
using testing_support::ScopedDirectory;
using testing_support::write_file;

using FeatureKind = ExampleFeature::Kind;
using FeatureType = ExampleFeature::Type;

const std::vector<ExampleFeature> kFeatures{
    {.name = "x", .kind = FeatureKind::kFixed, .type = FeatureType::kInt64},
    {.name = "y", .kind = FeatureKind::kFixed, .type = FeatureType::kFloat, .shape = {2}},
};

class DatasetFiles : public testing::Test {
 protected:
  // Examples with x = first, first + 1, … and y = [x, 2 x].
  std::string tfrecords(const std::string& name, int64_t first, int64_t count) const {
    TfRecordWriter out(directory_.path(name));
    for (int64_t x = first; x < first + count; ++x) {
      const auto y = static_cast<float>(x);
      out.write(ExampleBuilder().int64s("x", {x}).floats("y", {y, 2 * y}).serialize());
    }
    out.close();
    return out.path();
  }
  std::string file(const std::string& name, const std::string& text) const {
    write_file(directory_.path(name), text);
    return directory_.path(name);
  }

  const ScopedDirectory directory_;
};

TEST_F(DatasetFiles, GiveTheExamplesOfTfRecordsOneByOneAndInBatches) {
  const Dataset examples = Dataset::tfrecords({tfrecords("a", 0, 5)}).parse_examples(kFeatures);

  EXPECT_EQ(numbers_of(examples), Numbers({0, 1, 2, 3, 4}));
  const std::vector<Element> batches = elements_of(examples.batch(2));

  ASSERT_EQ(batches.size(), 3u);
  EXPECT_TRUE(batches[1][0].equal(torch::tensor({2, 3}, torch::kLong)));
  EXPECT_TRUE(batches[1][1].equal(torch::tensor({{2.0F, 4.0F}, {3.0F, 6.0F}})));
  EXPECT_EQ(batches[2][0].size(0), 1);
}

TEST_F(DatasetFiles, ParseABatchAsTheyParseItsElements) {
  const Dataset lines = Dataset::text_lines({file("a.csv", "1,2.5\n3,4.5\n5,6.5\n")});
  const CsvFormat format{
      .columns = {{.name = "a", .type = CsvColumn::Type::kInt64}, {.name = "b", .type = CsvColumn::Type::kFloat}}};

  const std::vector<Element> before = elements_of(lines.parse_csv(format).shuffle(2, 7).repeat(2).skip(1).batch(2));
  const std::vector<Element> after = elements_of(lines.shuffle(2, 7).repeat(2).skip(1).batch(2).parse_csv(format));
  const std::vector<Element> mapped =
      elements_of(lines.parse_csv(format)
                      .map([](at::Tensor a, at::Tensor b) { return std::pair(a + 0, b + 0); })
                      .shuffle(2, 7)
                      .repeat(2)
                      .skip(1)
                      .batch(2));

  ASSERT_EQ(before.size(), 3u);
  ASSERT_EQ(after.size(), 3u);
  ASSERT_EQ(mapped.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t column = 0; column < 2; ++column) {
      EXPECT_TRUE(before[i][column].equal(after[i][column]));
      EXPECT_TRUE(before[i][column].equal(mapped[i][column]));
    }
  }
}

TEST_F(DatasetFiles, ReadEveryFileThatAPatternNamesInOrder) {
  tfrecords("part-2", 20, 2);
  tfrecords("part-1", 10, 2);
  tfrecords("other", 90, 2);

  EXPECT_EQ(numbers_of(Dataset::tfrecords({directory_.path("part-*")}).parse_examples(kFeatures)),
            Numbers({10, 11, 20, 21}));
  EXPECT_THAT(error_of(StatusCode::kNotFound, [&] { elements_of(Dataset::tfrecords({directory_.path("no-*")})); }),
              HasSubstr("no-*"));
  EXPECT_THAT(error_of(StatusCode::kNotFound, [&] { elements_of(Dataset::tfrecords({directory_.path("none")})); }),
              HasSubstr("none"));
}

TEST_F(DatasetFiles, TakeBlocksOfSeveralFilesInTurn) {
  const std::vector<std::string> files{tfrecords("a", 0, 3), tfrecords("b", 10, 5), tfrecords("c", 20, 4)};

  const Dataset two = Dataset::tfrecords(files, {.cycle_length = 2, .block_length = 2}).parse_examples(kFeatures);

  EXPECT_EQ(numbers_of(two), Numbers({0, 1, 10, 11, 2, 12, 13, 20, 21, 14, 22, 23}));
}

TEST_F(DatasetFiles, GuessTheTypesOfColumnsFromTheFirstLines) {
  const std::string path = file("a.csv", "id,price,\"the, word\",note\n1,2,a,\n2,3.5,\"b, c\",\n,7,d,x\n");
  const Dataset rows = Dataset::csv({path});

  EXPECT_THAT(rows.column_names(), ElementsAre("id", "price", "the, word", "note"));
  const std::vector<Element> numbers = elements_of(rows.select({"price", "id"}).batch(3));

  ASSERT_EQ(numbers.size(), 1u);
  EXPECT_TRUE(numbers[0][0].equal(torch::tensor({2.0F, 3.5F, 7.0F})));
  EXPECT_TRUE(numbers[0][1].equal(torch::tensor({1, 2, 0}, torch::kLong)));
}

TEST_F(DatasetFiles, GuessNumbersWithBlanksAndSignsAsTheyAreRead) {
  const Dataset rows = Dataset::csv({file("a.csv", "id,price\n 1, +2.5\n +2 ,3\n")});

  const std::vector<Element> numbers = elements_of(rows.batch(2));

  ASSERT_EQ(numbers.size(), 1u);
  EXPECT_TRUE(numbers[0][0].equal(torch::tensor({1, 2}, torch::kLong)));
  EXPECT_TRUE(numbers[0][1].equal(torch::tensor({2.5F, 3.0F})));
}

TEST_F(DatasetFiles, SayWhichLineOfWhichFileIsWrong) {
  file("1.csv", "a,b\n1,2\n");
  file("2.csv", "a,b\n3,4\n5,six\n");
  const Dataset rows =
      Dataset::csv({directory_.path("*.csv")}, {.columns = {{.name = "b", .type = CsvColumn::Type::kFloat}}});

  const auto sentence = AllOf(HasSubstr("2.csv"), HasSubstr("line 3"), HasSubstr("\"b\""), HasSubstr("six"));
  EXPECT_THAT(error_of([&] { elements_of(rows); }), sentence);
  EXPECT_THAT(error_of([&] { elements_of(rows.shuffle(10, 1).batch(2)); }), sentence);
}

TEST_F(DatasetFiles, LeaveOutWhatCannotBeReadIfAsked) {
  file("a.csv", "a\n1\nx\n3\n");
  const CsvOptions options{.columns = {{.name = "a", .type = CsvColumn::Type::kInt64}},
                           .files = {.ignore_errors = true}};

  EXPECT_EQ(numbers_of(Dataset::csv({directory_.path("a.csv")}, options).batch(2)), Numbers({1, 3}));

  const std::string damaged = tfrecords("damaged", 0, 4);
  std::string bytes = testing_support::read_file(damaged);
  bytes[20] = static_cast<char>(bytes[20] ^ 1);
  write_file(damaged, bytes);
  EXPECT_THAT(
      error_of(StatusCode::kDataLoss, [&] { elements_of(Dataset::tfrecords({damaged}).parse_examples(kFeatures)); }),
      AllOf(HasSubstr("damaged"), HasSubstr("record 0")));
  EXPECT_EQ(numbers_of(Dataset::tfrecords({damaged}, {.ignore_errors = true}).parse_examples(kFeatures)),
            Numbers({1, 2, 3}));
}

TEST_F(DatasetFiles, RefuseAFileWithAnotherHeader) {
  file("1.csv", "a,b\n1,2\n");
  file("2.csv", "b,a\n3,4\n");

  EXPECT_THAT(error_of([&] { elements_of(Dataset::csv({directory_.path("*.csv")})); }),
              AllOf(HasSubstr("2.csv"), HasSubstr("b,a"), HasSubstr("a,b")));
}

TEST_F(DatasetFiles, TurnWordsIntoNumbersBeforeABatch) {
  file("a.csv", "user,price,sold\nann,1.5,1\nbob,2.5,0\nann,3.5,1\n");
  const Dataset rows = Dataset::csv({directory_.path("a.csv")});
  std::unique_ptr<Adapter> seen = string_lookup_adapter();
  rows.adapt(*seen, "user");

  const Dataset ready = rows.preprocess("user", seen->finish()).label("sold");

  EXPECT_THAT(ready.column_names(), ElementsAre("user", "price", "sold"));
  const std::vector<Element> batch = elements_of(ready.batch(3));
  EXPECT_EQ(numbers_in(batch[0][0]), Numbers({1, 2, 1}));
  EXPECT_EQ(numbers_of(ready), Numbers({1, 2, 1}));
  EXPECT_THAT(error_of([&] { elements_of(rows); }), AllOf(HasSubstr("string"), HasSubstr("hashing")));
  EXPECT_THAT(error_of([&] { rows.preprocess("usr", hashing({.bins = 3})); }),
              AllOf(HasSubstr("usr"), HasSubstr("user")));
}

TEST_F(DatasetFiles, GiveColumnsByNameToFunctions) {
  file("a.csv", "x,y,z\n1,10,100\n2,20,200\n");
  const Dataset rows = Dataset::csv({directory_.path("a.csv")}).label("y");
  auto sum = function([](Iterator& it) {
    auto [features, label] = it.next_labelled();
    return features["x"] + features["z"] * 2 + label * 1000;
  });
  Iterator it = rows.iterator();

  EXPECT_EQ(sum(it).item<int64_t>(), 1 + 200 + 10'000);
  EXPECT_EQ(sum(it).item<int64_t>(), 2 + 400 + 20'000);

  auto wrong = function([](Iterator& it) { return it.next_features()["u"]; });
  Iterator again = rows.iterator();
  EXPECT_THAT(error_of([&] { wrong(again); }), AllOf(HasSubstr("\"u\""), HasSubstr("x, z, y")));
}

TEST(DatasetColumns, GetNamesAndSeveralLabels) {
  const at::Tensor x = torch::arange(6).view({3, 2}), y = torch::arange(3), z = y * 10;
  const Dataset rows = Dataset::tensors({y, x, z}).shuffle(3, 1).named({"y", "x", "z"}).labels({"z", "y"}).batch(2);

  for (const Dataset& each : {rows, parse_dataset(rows.serialize())}) {
    EXPECT_THAT(each.column_names(), ElementsAre("x", "z", "y"));
    EXPECT_EQ(each.pattern().labels, 2);
    for (const Element& batch : elements_of(each)) {
      EXPECT_TRUE(batch[1].equal(batch[2] * 10));
      EXPECT_TRUE(batch[0].select(1, 0).equal(batch[2] * 2));
    }
  }
  auto one_label = function([](Iterator& it) { return it.next_labelled().second; });
  Iterator it = rows.iterator();
  EXPECT_THAT(error_of([&] { one_label(it); }), HasSubstr("2 labels, the last of the columns x, z, y, expected one"));
  EXPECT_THAT(error_of([&] { elements_of(Dataset::range(3).named({"a", "b"})); }),
              HasSubstr("named: 2 names, a, b, but an element has 1 tensors"));
  EXPECT_THAT(error_of([&] { rows.named({"a", "b", "a"}); }), HasSubstr("two columns \"a\""));
  EXPECT_THAT(error_of([&] { rows.labels({"y", "y"}); }), HasSubstr("labels: \"y\" twice"));
  EXPECT_THAT(error_of([&] { rows.labels({"y", "u"}); }), HasSubstr("no column \"u\""));
}

TEST_F(DatasetFiles, GoOverTheWire) {
  file("a.csv", "user,x\nann,1\nbob,\n");
  const CsvFormat format{.columns = {{.name = "user", .type = CsvColumn::Type::kString, .otherwise = std::string("?")},
                                     {.name = "x", .type = CsvColumn::Type::kFloat, .otherwise = 7.5}},
                         .header = {"user", "x"}};
  const Dataset described = Dataset::text_lines({directory_.path("*.csv")})
                                .skip(1)
                                .parse_csv(format)
                                .preprocess("user", string_lookup({.vocabulary = {"ann", "bob"}}))
                                .label("x")
                                .batch(2);
  const std::vector<ExampleFeature> features{
      {.name = "x", .kind = FeatureKind::kFixed, .type = FeatureType::kInt64, .otherwise = std::vector<int64_t>{3}},
      {.name = "tags", .kind = FeatureKind::kPadded, .type = FeatureType::kInt64, .padding = int64_t{-1}, .most = 4}};
  const Dataset examples = Dataset::tfrecords({tfrecords("t", 5, 2)}).parse_examples(features, {.threads = 2}).batch(2);

  const Dataset arrived = parse_dataset(described.serialize());
  const Dataset examples_arrived = parse_dataset(examples.serialize());

  EXPECT_EQ(arrived.column_names(), described.column_names());
  EXPECT_TRUE(elements_of(arrived)[0][1].equal(torch::tensor({1.0F, 7.5F})));
  EXPECT_EQ(numbers_of(arrived), Numbers({1, 2}));
  EXPECT_EQ(numbers_of(examples_arrived), Numbers({5, 6}));
  EXPECT_EQ(examples_arrived.serialize(), examples.serialize());
}

TEST_F(DatasetFiles, KeepAllValuesOfASparseFeatureOfOneExample) {
  TfRecordWriter out(directory_.path("tags"));
  out.write(ExampleBuilder().int64s("tags", {7, 8, 9}).serialize());
  out.write(ExampleBuilder().serialize());
  out.close();
  const Dataset examples =
      Dataset::tfrecords({out.path()})
          .parse_examples({{.name = "tags", .kind = FeatureKind::kSparse, .type = FeatureType::kInt64}});

  const std::vector<Element> one_by_one = elements_of(examples);
  const std::vector<Element> batches = elements_of(examples.batch(2));

  ASSERT_EQ(one_by_one.size(), 2u);
  EXPECT_EQ(numbers_in(one_by_one[0][0]), Numbers({7, 8, 9}));
  EXPECT_EQ(one_by_one[0][1].dim(), 0);
  EXPECT_EQ(one_by_one[1][0].numel(), 0);
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_EQ(numbers_in(batches[0][0]), Numbers({7, 8, 9}));
  EXPECT_EQ(numbers_in(batches[0][1]), Numbers({0, 3}));
}

TEST_F(DatasetFiles, TakeNoMorePlacesInTurnThanThereAreFiles) {
  const Dataset lines = Dataset::text_lines({file("a", "x\ny\n")}, {.cycle_length = int64_t{1} << 60});
  std::unique_ptr<Adapter> seen = string_lookup_adapter();

  lines.parse_csv({.columns = {{.name = "w", .type = CsvColumn::Type::kString}}}).adapt(*seen, "w");

  EXPECT_NO_THROW(seen->finish());
}

TEST(Strings, RefuseAShapeOfAnotherNumberOfThem) {
  Strings none;
  EXPECT_THROW(none.shape({int64_t{1} << 32, int64_t{1} << 32}), Error);
  EXPECT_THROW(none.shape({-1, 0}), Error);
  EXPECT_NO_THROW(none.shape({0, 5}));
}

TEST_F(DatasetFiles, ParseBySeveralThreadsInTheOrderOfTheFile) {
  const Dataset examples = Dataset::tfrecords({tfrecords("a", 0, 1'000)}).parse_examples(kFeatures, {.threads = 4});
  Numbers expected;
  for (int64_t i = 0; i < 1'000; ++i) expected.push_back(i);

  EXPECT_EQ(numbers_of(examples.batch(7)), expected);
  EXPECT_EQ(numbers_of(examples), expected);
  EXPECT_EQ(numbers_of(examples.repeat(2)).size(), 2'000u);
}

TEST_F(DatasetFiles, HaveRecordsOfAFixedSizeAsStrings) {
  const Dataset records = Dataset::fixed_records({file("a", "HEADabcdefF")}, 3, {.header_bytes = 4, .footer_bytes = 1});

  const Dataset lengths = records.batch(2);
  std::unique_ptr<Adapter> seen = string_lookup_adapter();
  EXPECT_THAT(error_of([&] { elements_of(lengths); }), HasSubstr("string[2]"));
  EXPECT_THAT(error_of([&] { records.adapt(*seen, "x"); }), HasSubstr("no names"));
  EXPECT_THAT(error_of([&] { Dataset::fixed_records({"a"}, 0); }), HasSubstr("0 bytes"));
}

TEST_F(DatasetFiles, ReadAnEpochOnceOverAllWorkersHoweverManyThereAre) {
  for (int i = 0; i < 5; ++i) tfrecords(str_cat("f", i), 10 * i, 4);
  const Dataset all = Dataset::tfrecords({directory_.path("f*")}).parse_examples(kFeatures);
  Numbers expected = numbers_of(all);

  for (const ShardPolicy policy : {ShardPolicy::kFile, ShardPolicy::kData, ShardPolicy::kAuto}) {
    for (int workers = 1; workers <= 7; ++workers) {
      Numbers read;
      for (int i = 0; i < workers; ++i) {
        const Dataset part = all.shard({.num_input_pipelines = workers, .input_pipeline_id = i}, policy).prefetch(1);
        for (const int64_t number : numbers_of(part)) read.push_back(number);
      }
      std::sort(read.begin(), read.end());
      EXPECT_EQ(read, expected) << workers;
    }
  }
}

TEST_F(DatasetFiles, MatchColumnsByNameWhereDatasetsAreJoined) {
  const Dataset one = Dataset::csv(file("a.csv", "id,clicked\n1,10\n")),
                other = Dataset::csv(file("b.csv", "clicked,id\n20,2\n"));

  for (const Dataset& joined : {Dataset::concatenate({one, other}), Dataset::sample({one, other}, {}, 1)}) {
    Numbers ids = numbers_of(joined);
    std::ranges::sort(ids);
    EXPECT_EQ(ids, Numbers({1, 2}));
    EXPECT_THAT(joined.column_names(), ElementsAre("id", "clicked"));
  }
  EXPECT_THAT(error_of([&] { Dataset::concatenate({one, Dataset::csv(file("c.csv", "id,age\n1,2\n"))}); }),
              HasSubstr("dataset 1 has the columns id, age, but dataset 0 has id, clicked"));
  EXPECT_THAT(error_of([&] { Dataset::concatenate({one, one.select({"id"})}); }),
              HasSubstr("dataset 1 has the columns id,"));
  const Dataset floats = Dataset::csv(file("d.csv", "id,clicked\n1,1.5\n"));
  EXPECT_THAT(error_of([&] { elements_of(Dataset::concatenate({one, floats})); }),
              AllOf(HasSubstr("column \"clicked\" of dataset 1 is float32"), HasSubstr("is int64")));
  EXPECT_THAT(
      error_of([&] {
        elements_of(Dataset::concatenate({Dataset::range(2), Dataset::zip({Dataset::range(2), Dataset::range(2)})}));
      }),
      HasSubstr("has 2 columns, but those before have 1"));
}

TEST_F(DatasetFiles, RefuseToZipTwoColumnsOfOneName) {
  const Dataset rows = Dataset::csv(file("a.csv", "id,clicked\n1,10\n"));

  EXPECT_THAT(error_of([&] { Dataset::zip({rows, rows.select({"clicked"})}); }),
              HasSubstr("datasets 0 and 1 both have a column \"clicked\""));
  EXPECT_THAT(Dataset::zip({rows.select({"id"}), rows.select({"clicked"})}).column_names(),
              ElementsAre("id", "clicked"));
}

TEST_F(DatasetFiles, SayThatATypeWasGuessedWhenAFieldIsNotOfIt) {
  std::string lines = "id\n";
  for (int i = 0; i < 150; ++i) lines += "1\n";
  const std::string path = file("a.csv", lines + "one\n");

  const std::string guessed = error_of([&] { numbers_of(Dataset::csv(path)); });
  const std::string said =
      error_of([&] { numbers_of(Dataset::csv(path, {.columns = {{.name = "id", .type = CsvColumn::Type::kInt64}}})); });

  EXPECT_THAT(guessed, HasSubstr("\"one\" is no number, expected int64, which the first lines look like; "
                                 "CsvOptions::columns can say another"));
  EXPECT_THAT(said, Not(HasSubstr("look like")));
}

TEST_F(DatasetFiles, ReadNothingOfColumnsThatAreNotSelected) {
  const std::string path = file("a.csv", "id,age,city\n1,30,oslo\n2,old,turin\n");
  const Dataset rows = Dataset::csv(path, {.columns = {{.name = "id", .type = CsvColumn::Type::kInt64},
                                                       {.name = "age", .type = CsvColumn::Type::kInt64},
                                                       {.name = "city", .type = CsvColumn::Type::kString}}});

  EXPECT_EQ(numbers_of(rows.select({"id"})), Numbers({1, 2}));
  EXPECT_THAT(error_of([&] { numbers_of(rows.select({"age"})); }), HasSubstr("\"old\" is no number"));
  const auto words = string_lookup_adapter();
  rows.shuffle(10).batch(2).adapt(*words, "city");
  EXPECT_EQ(words->finish()->state().values.at("vocabulary").sizes()[0], 2);
  const auto refused = normalization_adapter({.axis = {-1}});
  EXPECT_THAT(error_of([&] { rows.adapt(*refused, "id"); }),
              AllOf(HasSubstr("column \"id\": normalization"), HasSubstr("{.axis = {}}")));
}

TEST_F(DatasetFiles, LearnFromTheNumbersThatAreNotMissing) {
  const std::string path = file("a.csv", "age,id\n1,1\n,2\n3,3\n");
  const Dataset rows =
      Dataset::csv(path, {.columns = {{.name = "age", .type = CsvColumn::Type::kFloat, .otherwise = std::nan("")},
                                      {.name = "id", .type = CsvColumn::Type::kInt64}}});
  const auto all = normalization_adapter({.axis = {}}), known = normalization_adapter({.axis = {}});

  EXPECT_THAT(error_of([&] { rows.batch(2).adapt(*all, "age"); }),
              HasSubstr("column \"age\": normalization: got nan to learn from, in row 1 "));
  rows.select({"age"}).filter([](const torch::Tensor& age) { return age.isnan().logical_not(); }).adapt(*known, "age");

  const Dataset ages = rows.batch(3).preprocess("age", known->finish()).select({"age"});
  EXPECT_TRUE(torch::equal(elements_of(ages)[0][0].nan_to_num(0), torch::tensor({-1.F, 0.F, 1.F})));
}

// Keeps the texts of a column, for who writes them beside predictions.
struct KeyCollector : Adapter {
  void see(const Column& in) override {
    for (size_t i = 0; i < in.strings().count(); ++i) keys.emplace_back(in.strings()[i]);
  }
  std::shared_ptr<const Preprocessing> finish() override { return nullptr; }

  std::vector<std::string> keys;
};

TEST_F(DatasetFiles, ShowEachTextOfAColumnOnceAndInOrderToAnAdapterOfOnesOwn) {
  const Dataset rows = Dataset::csv(file("a.csv", "id,x\nb,1\na,2\nb,3\n")).batch(2);
  KeyCollector collector;

  rows.adapt(collector, "id");

  EXPECT_THAT(collector.keys, ElementsAre("b", "a", "b"));
}

TEST_F(DatasetFiles, SayWhichFileAndColumnIsWrong) {
  const std::string path = file("a.csv", "id,city\n1,\"new \"\"york\"\"\"\n");
  const Dataset rows = Dataset::csv(path);

  EXPECT_THAT(error_of([&] { Dataset::csv(path, {.columns = {{.name = "ids", .type = CsvColumn::Type::kInt64}}}); }),
              HasSubstr(path));
  EXPECT_THAT(error_of([&] { elements_of(rows.preprocess("id", string_lookup({.vocabulary = {"a"}}))); }),
              HasSubstr("column \"id\": string_lookup: got int64[]"));
  EXPECT_THAT(error_of([&] {
                elements_of(rows.preprocess("city", string_lookup({.vocabulary = {"a"}, .num_oov_indices = 0})));
              }),
              HasSubstr("column \"city\": string_lookup: value \"new \\\"york\\\"\" is not in the vocabulary"));
  EXPECT_THAT(error_of([&] { elements_of(rows.map([](at::Tensor id, at::Tensor) { return id; })); }),
              HasSubstr("column \"city\" of its elements"));
  EXPECT_THAT(error_of(StatusCode::kUnknown,
                       [&] {
                         elements_of(Dataset::range(3).map([](at::Tensor x) {
                           if (x.dim() == 0) throw std::runtime_error("my own words");
                           return x;
                         }));
                       }),
              HasSubstr("map \"dataset_files_test.cc:"));
  const std::string cache = directory_.path("none/cache");
  EXPECT_THAT(error_of(StatusCode::kNotFound, [&] { elements_of(Dataset::range(3).cache(cache)); }),
              AllOf(HasSubstr("cache \"" + cache + "\""), HasSubstr("there is no directory")));
}

}  // namespace
}  // namespace muster
