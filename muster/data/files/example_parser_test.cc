#include "muster/data/files/example_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/status.h"
#include "muster/data/files/example_builder.h"

namespace muster::example_parser_test {

using namespace std::string_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using Kind = ExampleFeature::Kind;
using Type = ExampleFeature::Type;
using Records = std::vector<std::string>;

Columns parse(const std::vector<ExampleFeature>& features, const Records& records) {
  const std::vector<std::string_view> views(records.begin(), records.end());
  return ExampleParser(features).parse(views);
}

// What parse() throws; fails if nothing.
Status refusal(const std::vector<ExampleFeature>& features, const Records& records) {
  try {
    parse(features, records);
  } catch (const Error& error) {
    return error.status();
  }
  ADD_FAILURE() << "expected an error";
  return {};
}

void expect_refused(const std::vector<ExampleFeature>& features, const std::string& why) {
  try {
    const ExampleParser parser(features);
    ADD_FAILURE() << "expected an error: " << why;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(error.status().message(), HasSubstr(why));
  }
}

template <class T>
std::vector<T> values(const Column& column) {
  const at::Tensor& tensor = column.tensor();
  return {tensor.const_data_ptr<T>(), tensor.const_data_ptr<T>() + tensor.numel()};
}
std::vector<int64_t> int64s(const Column& column) { return values<int64_t>(column); }
std::vector<float> floats(const Column& column) { return values<float>(column); }
std::vector<std::string> strings(const Column& column) {
  std::vector<std::string> all;
  for (size_t i = 0; i < column.strings().count(); ++i) all.emplace_back(column.strings()[i]);
  return all;
}

// The wire format by hand.
std::string piece(int number, const std::string& bytes) {
  EXPECT_LT(bytes.size(), 128u);
  return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
}
std::string entry(const std::string& name, const std::string& feature) {
  return piece(1, piece(1, name) + piece(2, feature));
}
std::string example(const std::string& entries) { return piece(1, entries); }
std::string packed(const std::string& numbers) { return piece(3, piece(1, numbers)); }  // a Feature of int64s

ExampleFeature fixed(const std::string& name, Type type, std::vector<int64_t> shape = {}) {
  return {.name = name, .kind = Kind::kFixed, .type = type, .shape = std::move(shape)};
}
ExampleFeature padded(const std::string& name, Type type, std::vector<int64_t> shape = {}) {
  return {.name = name, .kind = Kind::kPadded, .type = type, .shape = std::move(shape)};
}
ExampleFeature sparse(const std::string& name, Type type) {
  return {.name = name, .kind = Kind::kSparse, .type = type};
}
ExampleFeature steps(const std::string& name, Type type, std::vector<int64_t> shape = {}) {
  return {.name = name, .kind = Kind::kPadded, .type = type, .shape = std::move(shape), .sequence = true};
}

TEST(ExampleParser, MakesABatchOfFixedFeatures) {
  const Records records{
      ExampleBuilder().floats("d", {1, 2, 3, 4}).int64s("c", {5, -6}).bytes("s", "seven").serialize(),
      ExampleBuilder().floats("d", {8, 9, 10, 11}).int64s("c", {12, 100000}).bytes("s", "").serialize()};
  const ExampleParser parser(
      {fixed("s", Type::kString), fixed("d", Type::kFloat, {2, 2}), fixed("c", Type::kInt64, {2})});

  const Columns columns = parser.parse(std::vector<std::string_view>(records.begin(), records.end()));

  EXPECT_THAT(parser.names(), ElementsAre("s", "d", "c"));
  ASSERT_EQ(columns.size(), 3u);
  EXPECT_EQ(columns[0].to_string(), "string[2]");
  EXPECT_THAT(strings(columns[0]), ElementsAre("seven", ""));
  EXPECT_EQ(columns[1].to_string(), "float32[2, 2, 2]");
  EXPECT_THAT(floats(columns[1]), ElementsAre(1, 2, 3, 4, 8, 9, 10, 11));
  EXPECT_EQ(columns[2].to_string(), "int64[2, 2]");
  EXPECT_THAT(int64s(columns[2]), ElementsAre(5, -6, 12, 100000));
}

TEST(ExampleParser, ReadsNumbersOfEveryLength) {
  std::vector<int64_t> numbers;
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t power = uint64_t{1} << bit;
    for (const uint64_t number : {power - 1, power, power + 1, ~power}) numbers.push_back(static_cast<int64_t>(number));
  }
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(1));
  const std::string record = ExampleBuilder().int64s("c", numbers).serialize();

  EXPECT_EQ(int64s(parse({fixed("c", Type::kInt64, {256})}, {record})[0]), numbers);
  EXPECT_EQ(int64s(parse({sparse("c", Type::kInt64)}, {record})[0]), numbers);
}

TEST(ExampleParser, FindsFeaturesWhoseOrderChangesFromRecordToRecord) {
  const std::string a = entry("a", packed("\x01")), b = entry("b", packed("\x02")), c = entry("c", packed("\x03"));
  const Records records{example(a + b), example(b + a), example(c + a + b), example(c + b + c + a), example(b + a)};

  const Columns columns = parse({fixed("a", Type::kInt64), fixed("b", Type::kInt64)}, records);

  EXPECT_THAT(int64s(columns[0]), ElementsAre(1, 1, 1, 1, 1));
  EXPECT_THAT(int64s(columns[1]), ElementsAre(2, 2, 2, 2, 2));
}

TEST(ExampleParser, FillsInDefaultsWhereAnExampleHasNoValues) {
  ExampleFeature one = fixed("one", Type::kFloat, {3}), all = fixed("all", Type::kInt64, {2});
  ExampleFeature text = fixed("text", Type::kString, {2});
  one.otherwise = std::vector<float>{0.5f};
  all.otherwise = std::vector<int64_t>{7, 8};
  text.otherwise = std::vector<std::string>{"none"};
  const Records records{"", ExampleBuilder().floats("one", {1, 2, 3}).int64s("all", {4, 5}).serialize(),
                        example(entry("all", "") + entry("text", ""))};

  const Columns columns = parse({one, all, text}, records);

  EXPECT_THAT(floats(columns[0]), ElementsAre(0.5f, 0.5f, 0.5f, 1, 2, 3, 0.5f, 0.5f, 0.5f));
  EXPECT_THAT(int64s(columns[1]), ElementsAre(7, 8, 4, 5, 7, 8));
  EXPECT_EQ(columns[2].to_string(), "string[3, 2]");
  EXPECT_THAT(strings(columns[2]), ElementsAre("none", "none", "none", "none", "none", "none"));
}

TEST(ExampleParser, NamesRecordAndFeatureThatIsMissingAndThoseThatAreThere) {
  const std::string full = ExampleBuilder().floats("d", {1}).serialize(), empty;
  const std::string other = ExampleBuilder().int64s("label", {1}).floats("D", {1}).serialize();
  const ExampleParser parser({fixed("d", Type::kFloat)});
  const std::vector<std::string_view> views{full, empty};

  try {
    parser.parse(views, [](size_t i) { return "file \"a\": record " + std::to_string(i + 16); });
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(error.status().message(),
              "file \"a\": record 17: feature \"d\": the example does not have it, expected 1 floats; it has none");
  }
  try {
    parser.parse(std::vector<std::string_view>{full, other}, {});
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.status().message(), EndsWith("; it has \"D\", \"label\""));
  }
}

TEST(ExampleParser, SaysWhatIsThereInPlaceOfTheExpectedType) {
  const std::string record = ExampleBuilder().int64s("d", {1}).serialize();

  for (const ExampleFeature& feature :
       {fixed("d", Type::kFloat), padded("d", Type::kFloat), sparse("d", Type::kFloat)}) {
    const Status status = refusal({feature}, {record});

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), "record 0: feature \"d\": int64s, expected floats");
  }
}

TEST(ExampleParser, RefusesFixedFeaturesOfAnotherLength) {
  const std::string record =
      ExampleBuilder().int64s("c", {1, 2, 300}).floats("d", {}).strings("s", {"a", "b"}).serialize();

  EXPECT_EQ(refusal({fixed("c", Type::kInt64, {2})}, {record}).message(),
            "record 0: feature \"c\": 3 values, expected 2");
  EXPECT_EQ(refusal({fixed("c", Type::kInt64, {4})}, {record}).message(),
            "record 0: feature \"c\": 3 values, expected 4");
  EXPECT_EQ(refusal({fixed("d", Type::kFloat)}, {record}).message(), "record 0: feature \"d\": 0 values, expected 1");
  EXPECT_EQ(refusal({fixed("s", Type::kString)}, {record}).message(), "record 0: feature \"s\": 2 values, expected 1");
}

TEST(ExampleParser, PadsToTheLongestOfTheBatch) {
  ExampleFeature points = padded("p", Type::kFloat, {2}), words = padded("w", Type::kString);
  points.padding = -1.0f;
  words.padding = "-";
  const Records records{ExampleBuilder().floats("p", {1, 2}).strings("w", {"a", "b"}).serialize(), "",
                        ExampleBuilder().floats("p", {3, 4, 5, 6}).bytes("w", "c").int64s("c", {7}).serialize()};

  const Columns columns = parse({points, words, padded("c", Type::kInt64)}, records);

  EXPECT_THAT(ExampleParser({points, words}).names(), ElementsAre("p", "p/length", "w", "w/length"));
  EXPECT_EQ(columns[0].to_string(), "float32[3, 2, 2]");
  EXPECT_THAT(floats(columns[0]), ElementsAre(1, 2, -1, -1, -1, -1, -1, -1, 3, 4, 5, 6));
  EXPECT_THAT(int64s(columns[1]), ElementsAre(1, 0, 2));
  EXPECT_EQ(columns[2].to_string(), "string[3, 2]");
  EXPECT_THAT(strings(columns[2]), ElementsAre("a", "b", "-", "-", "c", "-"));
  EXPECT_THAT(int64s(columns[3]), ElementsAre(2, 0, 1));
  EXPECT_THAT(int64s(columns[4]), ElementsAre(0, 0, 7));
}

TEST(ExampleParser, CutsRowsOffAfterTheMost) {
  ExampleFeature ids = padded("c", Type::kInt64, {2}), words = padded("w", Type::kString);
  ids.most = 2;
  words.most = 1;
  const std::string record = ExampleBuilder().int64s("c", {1, 2, 3, 4, 5, 6}).strings("w", {"a", "b"}).serialize();

  const Columns columns = parse({ids, words}, {record});

  EXPECT_EQ(columns[0].to_string(), "int64[1, 2, 2]");
  EXPECT_THAT(int64s(columns[0]), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(int64s(columns[1]), ElementsAre(2));
  EXPECT_THAT(strings(columns[2]), ElementsAre("a"));
}

TEST(ExampleParser, RefusesHalfARow) {
  const std::string record = ExampleBuilder().floats("p", {1, 2, 3}).serialize();

  EXPECT_EQ(refusal({padded("p", Type::kFloat, {2})}, {record}).message(),
            "record 0: feature \"p\": 3 values, expected rows of 2");
}

TEST(ExampleParser, RefusesToPadABatchToMoreThanItsLimit) {
  Records records(1024);
  records[3] = ExampleBuilder().int64s("c", std::vector<int64_t>(1 << 20)).serialize();
  ExampleFeature limited = padded("c", Type::kInt64);
  limited.most = 5;

  const Status status = refusal({padded("c", Type::kInt64)}, records);

  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("record 3: feature \"c\""), HasSubstr("`most`")));
  EXPECT_EQ(parse({limited}, records)[0].to_string(), "int64[1024, 5]");
}

TEST(ExampleParser, PutsSparseValuesAfterEachOtherWithOffsetsAndWeights) {
  ExampleFeature ids = sparse("ids", Type::kInt64);
  ids.weights = "w";
  const Records records{
      ExampleBuilder().int64s("ids", {1, 200}).floats("w", {0.5f, 2}).strings("tags", {"x"}).serialize(), "",
      ExampleBuilder().int64s("ids", {3}).floats("w", {4}).strings("tags", {"y", ""}).serialize()};

  const Columns columns = parse({ids, sparse("tags", Type::kString)}, records);

  EXPECT_THAT(ExampleParser({ids, sparse("tags", Type::kString)}).names(),
              ElementsAre("ids", "ids/offsets", "ids/weights", "tags", "tags/offsets"));
  EXPECT_EQ(columns[0].to_string(), "int64[3]");
  EXPECT_THAT(int64s(columns[0]), ElementsAre(1, 200, 3));
  EXPECT_THAT(int64s(columns[1]), ElementsAre(0, 2, 2));
  EXPECT_THAT(floats(columns[2]), ElementsAre(0.5f, 2, 4));
  EXPECT_THAT(strings(columns[3]), ElementsAre("x", "y", ""));
  EXPECT_THAT(int64s(columns[4]), ElementsAre(0, 1, 1));
}

TEST(ExampleParser, NamesValuesAndWeightsThatDoNotAgree) {
  ExampleFeature ids = sparse("ids", Type::kInt64);
  ids.weights = "w";

  EXPECT_EQ(refusal({ids}, {ExampleBuilder().int64s("ids", {1, 2}).floats("w", {1}).serialize()}).message(),
            "record 0: feature \"ids\": 2 values, but its weights \"w\" are 1");
  EXPECT_EQ(refusal({ids}, {ExampleBuilder().int64s("ids", {1}).int64s("w", {1}).serialize()}).message(),
            "record 0: feature \"ids\": its weights \"w\": int64s, expected floats");
}

TEST(ExampleParser, PadsTheStepsOfSequenceExamples) {
  const Records records{
      SequenceExampleBuilder(ExampleBuilder().int64s("user", {7}))
          .floats("at", {1, 2})
          .floats("at", {3, 4})
          .bytes("word", "a")
          .serialize(),
      SequenceExampleBuilder(ExampleBuilder().int64s("user", {8})).list("at").serialize(),
      SequenceExampleBuilder(ExampleBuilder().int64s("user", {9})).floats("at", {5, 6}).int64s("no", {0}).serialize()};

  const Columns columns =
      parse({fixed("user", Type::kInt64), steps("at", Type::kFloat, {2}), steps("word", Type::kString)}, records);

  EXPECT_THAT(int64s(columns[0]), ElementsAre(7, 8, 9));
  EXPECT_EQ(columns[1].to_string(), "float32[3, 2, 2]");
  EXPECT_THAT(floats(columns[1]), ElementsAre(1, 2, 3, 4, 0, 0, 0, 0, 5, 6, 0, 0));
  EXPECT_THAT(int64s(columns[2]), ElementsAre(2, 0, 1));
  EXPECT_THAT(strings(columns[3]), ElementsAre("a", "", ""));
  EXPECT_THAT(int64s(columns[4]), ElementsAre(1, 0, 0));
}

TEST(ExampleParser, CutsStepsOffAfterTheMost) {
  ExampleFeature at = steps("at", Type::kInt64);
  at.most = 2;

  const Columns columns =
      parse({at}, {SequenceExampleBuilder().int64s("at", {1}).int64s("at", {2}).int64s("at", {3}).serialize()});

  EXPECT_THAT(int64s(columns[0]), ElementsAre(1, 2));
  EXPECT_THAT(int64s(columns[1]), ElementsAre(2));
}

TEST(ExampleParser, NamesTheStepThatHasAnotherShapeOrType) {
  const SequenceExampleBuilder builder = SequenceExampleBuilder().floats("at", {1, 2});

  EXPECT_EQ(refusal({steps("at", Type::kFloat, {2})}, {SequenceExampleBuilder(builder).floats("at", {1}).serialize()})
                .message(),
            "record 0: feature \"at\": step 1 has 1 values, expected 2");
  EXPECT_EQ(
      refusal({steps("at", Type::kFloat, {2})}, {SequenceExampleBuilder(builder).int64s("at", {1, 2}).serialize()})
          .message(),
      "record 0: feature \"at\": step 1 has int64s, expected floats");
}

TEST(ExampleParser, LooksForContextAndStepsInTheirOwnPlaces) {
  const std::string record = SequenceExampleBuilder(ExampleBuilder().int64s("a", {1})).int64s("b", {2}).serialize();

  const Columns columns = parse({padded("b", Type::kInt64), steps("a", Type::kInt64)}, {record});

  EXPECT_THAT(int64s(columns[1]), ElementsAre(0));
  EXPECT_THAT(int64s(columns[3]), ElementsAre(0));
}

TEST(ExampleParser, MakesColumnsOfABatchWithoutRecords) {
  const Columns columns =
      parse({fixed("d", Type::kFloat, {13}), padded("p", Type::kInt64, {2}), sparse("s", Type::kString)}, {});

  EXPECT_EQ(columns[0].to_string(), "float32[0, 13]");
  EXPECT_EQ(columns[1].to_string(), "int64[0, 0, 2]");
  EXPECT_EQ(columns[2].to_string(), "int64[0]");
  EXPECT_EQ(columns[3].to_string(), "string[0]");
  EXPECT_EQ(columns[4].to_string(), "int64[0]");
}

TEST(ExampleParser, ReadsListsThatAreNotPacked) {
  const std::string int64s_only = piece(3, "\x08\x05\x08\xac\x02"s), mixed = piece(3, "\x08\x05\x0a\x02\xac\x02"s);
  const std::string some_floats = piece(2, "\x0d\x00\x00\x80\x3f\x0a\x04\x00\x00\x00\x40"s);
  const Records records{example(entry("c", int64s_only) + entry("d", some_floats)),
                        example(entry("c", mixed) + entry("d", some_floats))};

  const Columns exact = parse({fixed("c", Type::kInt64, {2}), fixed("d", Type::kFloat, {2})}, records);
  const Columns ragged = parse({padded("c", Type::kInt64), padded("d", Type::kFloat)}, records);

  EXPECT_THAT(int64s(exact[0]), ElementsAre(5, 300, 5, 300));
  EXPECT_THAT(floats(exact[1]), ElementsAre(1, 2, 1, 2));
  EXPECT_THAT(int64s(ragged[0]), ElementsAre(5, 300, 5, 300));
  EXPECT_THAT(floats(ragged[2]), ElementsAre(1, 2, 1, 2));
}

TEST(ExampleParser, SkipsUnknownFieldsAtEveryLevel) {
  // A number, 8 bytes, a piece and 4 bytes, of fields 9 to 12.
  const std::string unknown = "\x48\x96\x01\x51"s + "12345678" + "\x5a\x02hi\x65" + "1234";
  const std::string list = unknown + piece(1, "\x07") + unknown;
  const auto length = [](const std::string& bytes) {
    return bytes.size() < 128
               ? std::string(1, static_cast<char>(bytes.size()))
               : std::string{static_cast<char>((bytes.size() & 0x7f) | 0x80), static_cast<char>(bytes.size() >> 7)};
  };
  const auto large = [&](int number, const std::string& bytes) {
    return std::string(1, static_cast<char>(number << 3 | 2)) + length(bytes) + bytes;
  };
  const std::string value = unknown + large(3, list) + unknown;
  const std::string features = unknown + "\x08\x01" + large(1, unknown + piece(1, "c") + large(2, value) + unknown);
  const std::string record = unknown + large(1, features) + unknown;

  EXPECT_THAT(int64s(parse({fixed("c", Type::kInt64)}, {record})[0]), ElementsAre(7));
}

TEST(ExampleParser, TakesKeyAndValueInAnyOrder) {
  const std::string record = example(piece(1, piece(2, packed("\x07")) + piece(1, "c")));

  EXPECT_THAT(int64s(parse({fixed("c", Type::kInt64)}, {record})[0]), ElementsAre(7));
}

TEST(ExampleParser, TakesTheLastOfANameThatComesTwice) {
  const std::string first = entry("c", packed("\x01")), last = entry("c", packed("\x02"));

  EXPECT_THAT(int64s(parse({fixed("c", Type::kInt64)}, {example(first + last)})[0]), ElementsAre(2));
  EXPECT_THAT(int64s(parse({fixed("c", Type::kInt64)}, {example(first) + example(last)})[0]), ElementsAre(2));
}

TEST(ExampleParser, TakesTheLastOfTwoValuesOfAnEntry) {
  const std::string record = example(piece(1, piece(1, "c") + piece(2, packed("\x01")) + piece(2, packed("\x02"))));

  EXPECT_THAT(int64s(parse({fixed("c", Type::kInt64)}, {record})[0]), ElementsAre(2));
}

TEST(ExampleParser, PutsTheMessagesOfAnExampleTogether) {
  const std::string record = example(entry("a", packed("\x01"))) + example(entry("b", packed("\x02")));

  const Columns columns = parse({fixed("a", Type::kInt64), fixed("b", Type::kInt64)}, {record});

  EXPECT_THAT(int64s(columns[0]), ElementsAre(1));
  EXPECT_THAT(int64s(columns[1]), ElementsAre(2));
}

TEST(ExampleParser, PutsThePiecesOfAListTogetherButOnlyThoseAfterAnotherKind) {
  const std::string unknown = "\x48\x01";
  const std::string record = example(entry("c", packed("\x01\x02") + unknown + packed("\x03")));
  const std::string changed = example(entry("c", packed("\x01") + piece(1, "") + packed("\x02") + packed("\x03")));

  EXPECT_THAT(int64s(parse({fixed("c", Type::kInt64, {3})}, {record})[0]), ElementsAre(1, 2, 3));
  EXPECT_THAT(int64s(parse({sparse("c", Type::kInt64)}, {changed})[0]), ElementsAre(2, 3));
}

TEST(ExampleParser, RefusesBytesThatAreNoExample) {
  const auto why = [](const std::string& record) {
    const Status status = refusal({padded("c", Type::kInt64), padded("d", Type::kFloat)}, {record});
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status;
    return status.message();
  };

  EXPECT_EQ(why("\x0b\x0c"), "record 0: not the bytes of an example: it has a group, which examples never have");
  EXPECT_THAT(why("\x0c"), HasSubstr("group"));
  EXPECT_THAT(why("\x0e"), HasSubstr("wire type"));
  EXPECT_THAT(why("\x02\x01z"s), HasSubstr("valid number"));
  EXPECT_THAT(why("\xfa\xff\xff\xff\xff\x01"), HasSubstr("valid number"));
  EXPECT_THAT(why("\x0a\x05z"), HasSubstr("longer than what holds it"));
  EXPECT_THAT(why("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), HasSubstr("longer than what holds it"));
  EXPECT_THAT(why("\x08\x80"), HasSubstr("within a number"));
  EXPECT_THAT(why("\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), HasSubstr("more than 10 bytes"));
  EXPECT_EQ(why(example(entry("c", packed("\x01\x80")))),
            "record 0: feature \"c\": not the bytes of an example: it ends within a number");
  EXPECT_THAT(why(example(entry("c", packed(std::string(10, '\xff') + "\x01")))), HasSubstr("more than 10 bytes"));
  EXPECT_THAT(why(example(entry("d", piece(2, piece(1, "12345"))))), HasSubstr("packed floats end within one"));
  EXPECT_THAT(why(example(entry("d", piece(2, "\x0d\x01")))), HasSubstr("longer than what holds it"));
}

// Features of every kind and type, for bytes that may be anything.
std::vector<ExampleFeature> all_kinds() {
  ExampleFeature weighted = sparse("ids", Type::kInt64);
  weighted.weights = "w";
  ExampleFeature dense = fixed("d", Type::kFloat, {3});
  dense.otherwise = std::vector<float>{0};
  return {dense,
          weighted,
          padded("c", Type::kInt64),
          padded("s", Type::kString),
          steps("x", Type::kFloat, {2}),
          steps("y", Type::kString)};
}

std::string record_of_all_kinds() {
  const ExampleBuilder context = ExampleBuilder()
                                     .floats("d", {1, 2, 3})
                                     .int64s("ids", {1, 1000, -1})
                                     .floats("w", {1, 2, 3})
                                     .int64s("c", {5, 600, 70000, 1ll << 50, -3})
                                     .strings("s", {"one", "", "three"});
  return SequenceExampleBuilder(context).floats("x", {1, 2}).floats("x", {3, 4}).bytes("y", "word").serialize();
}

// True if it was an example. Anything but an Error or a result ends the test.
bool parses(const ExampleParser& parser, const std::string& record) {
  // The memory ends with the record, so that the address sanitizer sees what reads on.
  const std::vector<char> exact(record.begin(), record.end());
  const std::string_view view(exact.data(), exact.size());
  try {
    parser.parse(std::vector<std::string_view>{view, view});
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(ExampleParser, SurvivesEveryPrefixOfARecord) {
  const ExampleParser parser(all_kinds());
  const std::string record = record_of_all_kinds();

  ASSERT_TRUE(parses(parser, record));
  size_t whole = 0;
  for (size_t size = 0; size < record.size(); ++size) whole += parses(parser, record.substr(0, size));

  // The empty one, and the one that ends between context and lists.
  EXPECT_EQ(whole, 2u);
}

TEST(ExampleParser, SurvivesRecordsWithChangedBytes) {
  const ExampleParser parser(all_kinds());
  const std::string record = record_of_all_kinds();
  std::mt19937 random(7);

  size_t whole = 0, broken = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string changed = record;
    for (uint32_t changes = random() % 3 + 1; changes > 0; --changes) {
      changed[random() % changed.size()] = static_cast<char>(random());
    }
    ++(parses(parser, changed) ? whole : broken);
  }

  EXPECT_GT(whole, 1000u);
  EXPECT_GT(broken, 1000u);
}

TEST(ExampleParser, RefusesFeaturesThatDoNotFitTogether) {
  const auto with = [](ExampleFeature feature, auto&& change) {
    change(feature);
    return std::vector<ExampleFeature>{feature};
  };
  using F = ExampleFeature&;

  expect_refused({}, "without features");
  expect_refused({fixed("", Type::kFloat)}, "no name");
  expect_refused({fixed("d", Type::kFloat), sparse("d", Type::kInt64)}, "two columns have the name \"d\"");
  expect_refused({padded("d", Type::kFloat), fixed("d/length", Type::kInt64)},
                 "two columns have the name \"d/length\"");
  expect_refused({fixed("d", Type::kFloat, {2, 0})}, "feature \"d\": shape [2, 0]");
  expect_refused({fixed("d", Type::kFloat, {-1})}, "shape [-1]");
  expect_refused({fixed("d", Type::kFloat, {1ll << 40, 1ll << 40})}, "shape [");
  expect_refused(with(sparse("d", Type::kInt64), [](F f) { f.shape = {2}; }), "a sparse feature has no shape");
  expect_refused(with(fixed("d", Type::kInt64), [](F f) { f.sequence = true; }), "has to be padded");
  expect_refused(with(fixed("d", Type::kInt64), [](F f) { f.otherwise = std::vector<float>{1}; }), "not of its type");
  expect_refused(with(fixed("d", Type::kFloat, {3}), [](F f) { f.otherwise = std::vector<float>{1, 2}; }),
                 "2 values for examples without it, expected 1 or the 3 of its shape");
  expect_refused(with(padded("d", Type::kFloat), [](F f) { f.otherwise = std::vector<float>{1}; }), "only a fixed");
  expect_refused(with(padded("d", Type::kFloat), [](F f) { f.padding = 1; }), "the padding is not of its type");
  expect_refused(with(fixed("d", Type::kFloat), [](F f) { f.padding = 1.0f; }), "only a padded feature");
  expect_refused(with(sparse("d", Type::kFloat), [](F f) { f.most = 1; }), "only a padded feature");
  expect_refused(with(padded("d", Type::kFloat), [](F f) { f.most = 0; }), "at most 0 rows");
  expect_refused(with(padded("d", Type::kFloat), [](F f) { f.weights = "w"; }), "only a sparse feature has weights");
}

}  // namespace muster::example_parser_test
