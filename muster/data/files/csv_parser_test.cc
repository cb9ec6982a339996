#include "muster/data/files/csv_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include "muster/base/status.h"

namespace muster::csv_parser_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Type = CsvColumn::Type;

template <class T>
std::vector<T> values_of(const Column& column) {
  const T* begin = column.tensor().const_data_ptr<T>();
  return {begin, begin + column.tensor().numel()};
}

std::vector<std::string> words_of(const Column& column) {
  std::vector<std::string> words;
  for (size_t i = 0; i < column.strings().count(); ++i) words.emplace_back(column.strings()[i]);
  return words;
}

Columns parsed(CsvFormat format, const std::vector<std::string_view>& lines) {
  return CsvParser(std::move(format)).parse(lines);
}

std::string complaint_about_csv(CsvFormat format, const std::vector<std::string_view>& lines) {
  try {
    CsvParser(std::move(format)).parse(lines, [](size_t i) { return str_cat("file \"a.csv\": line ", i + 18); });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    return error.status().message();
  }
  return "none";
}

// What std::from_chars makes of the same text, in one column of floats.
template <class Float>
void expect_as_from_chars(const std::vector<std::string>& texts, Type type) {
  const std::vector<std::string_view> lines(texts.begin(), texts.end());

  const Columns columns = parsed({.columns = {{.name = "x", .type = type}}}, lines);

  using Bits = std::conditional_t<sizeof(Float) == 4, uint32_t, uint64_t>;
  const std::vector<Float> values = values_of<Float>(columns[0]);
  ASSERT_EQ(values.size(), texts.size());
  size_t different = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    Float expected = 0;
    const auto result = std::from_chars(texts[i].data(), texts[i].data() + texts[i].size(), expected);
    ASSERT_EQ(result.ec, std::errc()) << texts[i];
    if (std::bit_cast<Bits>(values[i]) == std::bit_cast<Bits>(expected)) continue;
    if (++different < 5) ADD_FAILURE() << texts[i] << " is " << values[i] << ", expected " << expected;
  }
  EXPECT_EQ(different, 0u);
}

TEST(CsvParser, TurnsLinesIntoAColumnPerField) {
  const CsvParser parser({.columns = {{.name = "a", .type = Type::kFloat},
                                      {.name = "b", .type = Type::kDouble},
                                      {.name = "c", .type = Type::kInt32},
                                      {.name = "d", .type = Type::kInt64},
                                      {.name = "e", .type = Type::kString}}});
  const std::vector<std::string_view> lines = {"1.5,0.1,-7,9007199254740993,u1", "-2,1e-300,2147483647,-1,two words"};

  const Columns columns = parser.parse(lines);

  EXPECT_THAT(parser.names(), ElementsAre("a", "b", "c", "d", "e"));
  ASSERT_EQ(columns.size(), 5u);
  EXPECT_EQ(columns[0].to_string(), "float32[2]");
  EXPECT_EQ(columns[4].to_string(), "string[2]");
  EXPECT_THAT(values_of<float>(columns[0]), ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(values_of<double>(columns[1]), ElementsAre(0.1, 1e-300));
  EXPECT_THAT(values_of<int32_t>(columns[2]), ElementsAre(-7, 2147483647));
  EXPECT_THAT(values_of<int64_t>(columns[3]), ElementsAre(9007199254740993, -1));
  EXPECT_THAT(words_of(columns[4]), ElementsAre("u1", "two words"));
}

TEST(CsvParser, GivesTheWantedColumnsOfAHeaderInTheirOwnOrder) {
  const CsvFormat format{.columns = {{.name = "y", .type = Type::kInt64}, {.name = "b", .type = Type::kString}},
                         .header = {"a", "b", "c", "y"}};

  const Columns columns = parsed(format, {"not,p,a number,1", ",q,,2"});

  ASSERT_EQ(columns.size(), 2u);
  EXPECT_THAT(values_of<int64_t>(columns[0]), ElementsAre(1, 2));
  EXPECT_THAT(words_of(columns[1]), ElementsAre("p", "q"));
}

TEST(CsvParser, GivesEmptyColumnsForNoLines) {
  const Columns columns =
      parsed({.columns = {{.name = "a", .type = Type::kFloat}, {.name = "b", .type = Type::kString}}}, {});

  EXPECT_EQ(columns[0].to_string(), "float32[0]");
  EXPECT_EQ(columns[1].to_string(), "string[0]");
}

TEST(CsvParser, ReadsQuotedFields) {
  const CsvFormat format{.columns = {{.name = "a", .type = Type::kString},
                                     {.name = "b", .type = Type::kInt64},
                                     {.name = "c", .type = Type::kString}}};

  const Columns columns = parsed(format, {R"("a, ""b""","12",z)", "plain,13,\"x\ny\"", R"("""",14,"""""")", "p,15,q"});

  EXPECT_THAT(words_of(columns[0]), ElementsAre("a, \"b\"", "plain", "\"", "p"));
  EXPECT_THAT(values_of<int64_t>(columns[1]), ElementsAre(12, 13, 14, 15));
  EXPECT_THAT(words_of(columns[2]), ElementsAre("z", "x\ny", "\"\"", "q"));
}

TEST(CsvParser, TakesAQuoteAsItIsWhereQuotesAreOff) {
  const Columns columns =
      parsed({.columns = {{.name = "a", .type = Type::kString}, {.name = "b", .type = Type::kString}}, .quotes = false},
             {R"("a,b")", R"(5" disk,"")"});

  EXPECT_THAT(words_of(columns[0]), ElementsAre("\"a", "5\" disk"));
  EXPECT_THAT(words_of(columns[1]), ElementsAre("b\"", "\"\""));
}

TEST(CsvParser, SplitsAtAnySeparatorInAnyPlace) {
  for (const char separator : {',', '\t', '|', '\x01', '\xff'}) {
    for (size_t before = 0; before < 20; ++before) {
      // One more than a separator, and the bytes beside it, must not be taken for it.
      const std::string first(before, static_cast<char>(separator + 1)),
          second(before % 7, static_cast<char>(separator ^ '\x80'));
      const std::string line = "x" + first + separator + "y" + second + separator + separator + "z" + first;

      const Columns columns = parsed({.columns = {{.name = "a", .type = Type::kString},
                                                  {.name = "b", .type = Type::kString},
                                                  {.name = "c", .type = Type::kString, .otherwise = "none"},
                                                  {.name = "d", .type = Type::kString}},
                                      .separator = separator},
                                     {line});

      EXPECT_THAT(words_of(columns[0]), ElementsAre("x" + first));
      EXPECT_THAT(words_of(columns[1]), ElementsAre("y" + second));
      EXPECT_THAT(words_of(columns[2]), ElementsAre("none"));
      EXPECT_THAT(words_of(columns[3]), ElementsAre("z" + first));
    }
  }
}

TEST(CsvParser, KeepsLinesAndFieldsTogetherInLargeBatches) {
  std::vector<std::string> texts;
  for (int i = 0; i < 1000; ++i) texts.push_back(str_cat(i, ",", std::string(i % 97 + 1, 'w'), i));
  const std::vector<std::string_view> lines(texts.begin(), texts.end());

  const Columns columns =
      parsed({.columns = {{.name = "a", .type = Type::kInt32}, {.name = "b", .type = Type::kString}}}, lines);

  const std::vector<int32_t> numbers = values_of<int32_t>(columns[0]);
  ASSERT_EQ(numbers.size(), 1000u);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(numbers[i], i);
    EXPECT_EQ(columns[1].strings()[i], str_cat(std::string(i % 97 + 1, 'w'), i));
  }
}

TEST(CsvParser, PutsTheOtherValueForFieldsThatAreMissing) {
  const CsvFormat format{.columns = {{.name = "a", .type = Type::kFloat, .otherwise = 0.5},
                                     {.name = "b", .type = Type::kDouble, .otherwise = -1},
                                     {.name = "c", .type = Type::kInt32, .otherwise = 3},
                                     {.name = "d", .type = Type::kInt64, .otherwise = 4},
                                     {.name = "e", .type = Type::kString, .otherwise = "nobody"}},
                         .na_value = "-99"};

  const Columns columns = parsed(format, {",,,,", "-99,-99,-99,-99,-99", R"("","-99","","-99","-99")", "1,2,3,4,5"});

  EXPECT_THAT(values_of<float>(columns[0]), ElementsAre(0.5f, 0.5f, 0.5f, 1.0f));
  EXPECT_THAT(values_of<double>(columns[1]), ElementsAre(-1.0, -1.0, -1.0, 2.0));
  EXPECT_THAT(values_of<int32_t>(columns[2]), ElementsAre(3, 3, 3, 3));
  EXPECT_THAT(values_of<int64_t>(columns[3]), ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(words_of(columns[4]), ElementsAre("nobody", "nobody", "nobody", "5"));
}

TEST(CsvParser, NamesTheLineAndColumnOfAFieldThatIsMissing) {
  const CsvFormat format{.columns = {{.name = "a", .type = Type::kFloat}, {.name = "b", .type = Type::kString}},
                         .na_value = "NA"};

  EXPECT_EQ(complaint_about_csv(format, {"1,x", ",y"}),
            "file \"a.csv\": line 19: column \"a\": an empty field, expected float32, for the column has no value "
            "otherwise");
  EXPECT_THAT(complaint_about_csv(format, {"1,NA"}),
              AllOf(HasSubstr("line 18: column \"b\": \"NA\""), HasSubstr("missing")));
}

TEST(CsvParser, NamesTheLineAndColumnOfAFieldThatIsNoNumber) {
  const CsvFormat format{.columns = {{.name = "a", .type = Type::kString}, {.name = "b", .type = Type::kInt32}}};

  EXPECT_EQ(complaint_about_csv(format, {"x,1", "x,2", "y,1.5"}),
            "file \"a.csv\": line 20: column \"b\": \"1.5\" is no number, expected int32");
  EXPECT_EQ(complaint_about_csv(format, {"x,\"a \"\"b\""}),
            "file \"a.csv\": line 18: column \"b\": \"a \\\"b\" is no number, expected int32");
}

TEST(CsvParser, ShortensAndEscapesTheFieldsThatItShows) {
  const std::string line = "\x01" + std::string(100'000, 'x');

  const std::string message = complaint_about_csv({.columns = {{.name = "a", .type = Type::kFloat}}}, {line});

  EXPECT_EQ(message, "file \"a.csv\": line 18: column \"a\": \"\\x01" + std::string(39, 'x') +
                         "…\" is no number, expected float32");
}

TEST(CsvParser, CountsTheLinesOfTheBatchWhereNobodyNamesThem) {
  const CsvParser parser({.columns = {{.name = "a", .type = Type::kInt64}}});
  const std::vector<std::string_view> lines = {"1", "x"};

  try {
    parser.parse(lines);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.status().message(), HasSubstr("CSV: line 2 of the batch: column \"a\""));
  }
}

TEST(CsvParser, RefusesWhatIsNoNumber) {
  for (const Type type : {Type::kFloat, Type::kDouble, Type::kInt32, Type::kInt64}) {
    for (const char* text : {" ",   "-",    "+",  ".",  "-.",   "1e",   "1 2",       "1.2.3", "--1",  "+-1",
                             "-+1", "0x10", "1x", "x1", "1e5x", "nano", "\"1\"\"\"", "1_000", "1.0f", "٣"}) {
      EXPECT_THAT(complaint_about_csv({.columns = {{.name = "a", .type = type}}}, {text}), HasSubstr("is no number"))
          << text;
    }
  }
  for (const char* text : {"1.0", "1e3", "inf", "nan", ".5", "5."}) {
    EXPECT_THAT(complaint_about_csv({.columns = {{.name = "a", .type = Type::kInt64}}}, {text}),
                HasSubstr("is no number"))
        << text;
  }
}

TEST(CsvParser, RefusesNumbersThatAreOutOfRange) {
  const auto complaint = [](Type type, std::string_view text) {
    return complaint_about_csv({.columns = {{.name = "a", .type = type}}}, {text});
  };

  EXPECT_EQ(complaint(Type::kInt32, "2147483648"),
            "file \"a.csv\": line 18: column \"a\": \"2147483648\" is out of range, expected int32");
  EXPECT_THAT(complaint(Type::kInt32, "-2147483649"), HasSubstr("out of range"));
  EXPECT_THAT(complaint(Type::kInt64, "9223372036854775808"), HasSubstr("out of range"));
  EXPECT_THAT(complaint(Type::kInt64, "-99999999999999999999999"), HasSubstr("out of range"));
  EXPECT_THAT(complaint(Type::kFloat, "3.5e38"), HasSubstr("out of range"));
  EXPECT_THAT(complaint(Type::kFloat, "-1" + std::string(39, '0')), HasSubstr("out of range"));
  EXPECT_THAT(complaint(Type::kDouble, "1e309"), HasSubstr("out of range"));
  EXPECT_THAT(complaint(Type::kDouble, "0.001e99999999999999999999999"), HasSubstr("out of range"));
}

TEST(CsvParser, TakesNumbersThatAreTooSmallForZero) {
  const std::vector<std::string_view> lines = {"1e-60,1e-400", "-1e-60,-1e-400",
                                               "0.00001E-50,1000e-99999999999999999999", "1e-45,5e-324"};

  const Columns columns =
      parsed({.columns = {{.name = "a", .type = Type::kFloat}, {.name = "b", .type = Type::kDouble}}}, lines);

  EXPECT_THAT(values_of<float>(columns[0]), ElementsAre(0.0f, -0.0f, 0.0f, std::numeric_limits<float>::denorm_min()));
  EXPECT_THAT(values_of<double>(columns[1]), ElementsAre(0.0, -0.0, 0.0, std::numeric_limits<double>::denorm_min()));
  EXPECT_TRUE(std::signbit(values_of<float>(columns[0])[1]));
  EXPECT_TRUE(std::signbit(values_of<double>(columns[1])[1]));
}

TEST(CsvParser, TakesIntegersUpToTheEndsOfTheirRange) {
  const std::vector<std::string_view> lines = {"2147483647,9223372036854775807", "-2147483648,-9223372036854775808",
                                               "000000000000000000000012,-0"};

  const Columns columns =
      parsed({.columns = {{.name = "a", .type = Type::kInt32}, {.name = "b", .type = Type::kInt64}}}, lines);

  EXPECT_THAT(values_of<int32_t>(columns[0]), ElementsAre(2147483647, std::numeric_limits<int32_t>::min(), 12));
  EXPECT_THAT(values_of<int64_t>(columns[1]),
              ElementsAre(std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), 0));
}

TEST(CsvParser, TakesBlanksAndSignsAsTensorFlowDoes) {
  const std::vector<std::string_view> lines = {" 1, 2", "3 ,4\t", "  +5.5 ,+6", "\"7\",\" 8 \"", "9\r,\v10\f"};

  const Columns columns =
      parsed({.columns = {{.name = "a", .type = Type::kFloat}, {.name = "b", .type = Type::kInt32}}}, lines);

  EXPECT_THAT(values_of<float>(columns[0]), ElementsAre(1, 3, 5.5f, 7, 9));
  EXPECT_THAT(values_of<int32_t>(columns[1]), ElementsAre(2, 4, 6, 8, 10));
}

TEST(CsvParser, TakesInfinitiesAndWhatIsNoNumber) {
  const Columns columns =
      parsed({.columns = {{.name = "a", .type = Type::kFloat}}}, {"inf", "-Inf", "+INFINITY", "nan", "NaN"});

  const std::vector<float> values = values_of<float>(columns[0]);
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(values[0], infinity);
  EXPECT_EQ(values[1], -infinity);
  EXPECT_EQ(values[2], infinity);
  EXPECT_TRUE(std::isnan(values[3]));
  EXPECT_TRUE(std::isnan(values[4]));
}

TEST(CsvParser, ReadsAMillionDecimalsAsTheStandardLibraryDoes) {
  std::mt19937_64 random(1);
  std::vector<std::string> texts;
  for (int i = 0; i < 500'000; ++i) {
    // Up to 20 digits with a point in any place, so that some have too many for the fast way.
    std::string text = std::to_string(random());
    text.resize(1 + random() % text.size());
    const size_t zeros = random() % 4 == 0 ? random() % 6 : 0;
    text.insert(0, zeros, '0');
    if (random() % 8 != 0) text.insert(random() % (text.size() + 1), 1, '.');
    if (random() % 2 == 0) text.insert(0, 1, '-');
    texts.push_back(std::move(text));
  }

  expect_as_from_chars<float>(texts, Type::kFloat);
  expect_as_from_chars<double>(texts, Type::kDouble);
}

TEST(CsvParser, RoundsDecimalsBesideTheMiddleOfTwoFloatsOnce) {
  // 15 to 17 digits lead, as doubles, often to the middle itself: whoever rounds that again goes to the even float.
  std::mt19937_64 random(2);
  std::vector<std::string> texts = {"16777217", "16777219", "33554434.0", "33554435", "33554438"};
  for (int i = 0; i < 100'000; ++i) {
    const float low =
        std::ldexp(1.0f + static_cast<float>(random() % (1 << 23)) / (1 << 23), static_cast<int>(random() % 40) - 10);
    const double middle = (static_cast<double>(low) + std::nextafter(low, 1e30f)) / 2;
    const int before_point = std::max(1, static_cast<int>(std::floor(std::log10(middle))) + 1);
    char text[64];
    std::snprintf(text, sizeof(text), "%.*f", std::max(0, 15 + static_cast<int>(random() % 3) - before_point), middle);
    texts.emplace_back(text);
  }

  expect_as_from_chars<float>(texts, Type::kFloat);
}

TEST(CsvParser, NamesALineWithTooFewOrTooManyFields) {
  const CsvFormat format{.columns = {{.name = "a", .type = Type::kInt32}, {.name = "b", .type = Type::kInt32}}};

  EXPECT_EQ(complaint_about_csv(format, {"1,2", "3"}), "file \"a.csv\": line 19: 1 field, expected 2: \"3\"");
  EXPECT_EQ(complaint_about_csv(format, {"1,2,3"}), "file \"a.csv\": line 18: 3 fields, expected 2: \"1,2,3\"");
  EXPECT_EQ(complaint_about_csv(format, {""}), "file \"a.csv\": line 18: 1 field, expected 2: \"\"");
  EXPECT_THAT(complaint_about_csv(format, {"1,2,"}), HasSubstr("3 fields, expected 2"));
  EXPECT_THAT(complaint_about_csv(format, {"\"1\""}), HasSubstr("1 field, expected 2"));
  EXPECT_THAT(complaint_about_csv(format, {"\"1\",2,3,4"}), HasSubstr("4 fields, expected 2"));
  EXPECT_THAT(complaint_about_csv(format, {",,,,,,,,,,,,,,,,,,,,"}), HasSubstr("21 fields, expected 2"));
}

TEST(CsvParser, NamesTheFieldWhoseQuotesAreWrong) {
  const CsvFormat format{.columns = {{.name = "a", .type = Type::kString}, {.name = "b", .type = Type::kString}}};

  EXPECT_EQ(complaint_about_csv(format, {"x,\"y"}),
            "file \"a.csv\": line 18: column \"b\": \"\\\"y\": the quote is not closed");
  EXPECT_THAT(complaint_about_csv(format, {"x,\""}), HasSubstr("column \"b\": \"\\\"\": the quote is not closed"));
  EXPECT_THAT(complaint_about_csv(format, {"x,\"\"\""}), HasSubstr("the quote is not closed"));
  EXPECT_THAT(complaint_about_csv(format, {"\"x\" ,y"}),
              HasSubstr("column \"a\": \"\\\"x\\\" \": text after the closing quote"));
  EXPECT_THAT(complaint_about_csv(format, {"x,y\"z\""}),
              HasSubstr("column \"b\": \"y\\\"z\\\"\": a quote within a field that does not begin with one"));
  EXPECT_THAT(complaint_about_csv(format, {"x,y,\"z"}), HasSubstr("field 3 of 2"));
}

TEST(CsvParser, TakesAnyBytesForALineWithoutHarm) {
  std::mt19937_64 random(3);
  const CsvParser parser({.columns = {{.name = "a", .type = Type::kFloat, .otherwise = 0},
                                      {.name = "b", .type = Type::kString, .otherwise = ""},
                                      {.name = "c", .type = Type::kInt32, .otherwise = 0}}});
  constexpr std::string_view kBytes = "\",,,1.-e \0a\xff";
  size_t right = 0, wrong = 0;

  for (int i = 0; i < 20'000; ++i) {
    std::string text(random() % 12, '\0');
    for (char& c : text) c = kBytes[random() % kBytes.size()];
    // Of its own size, so that a sanitizer sees who reads beyond it.
    const std::vector<char> exact(text.begin(), text.end());
    const std::vector<std::string_view> lines = {std::string_view(exact.data(), exact.size())};
    try {
      right += parser.parse(lines).size() == 3;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
      ++wrong;
    }
  }

  EXPECT_GT(right, 100u);
  EXPECT_GT(wrong, 100u);
}

TEST(CsvParser, RefusesAFormatThatCannotBe) {
  const auto complaint = [](CsvFormat format) { return complaint_about_csv(std::move(format), {}); };
  const CsvColumn a{.name = "a", .type = Type::kFloat}, b{.name = "b", .type = Type::kFloat};

  EXPECT_THAT(complaint({.columns = {}}), HasSubstr("no columns"));
  EXPECT_EQ(complaint({.columns = {a, b, a}}), "CSV: column \"a\" is there twice");
  EXPECT_EQ(complaint({.columns = {a}, .header = {"a", "x", "x"}}), "CSV: the header has \"x\" twice");
  EXPECT_EQ(complaint({.columns = {a, b}, .header = {"a", "x", "y"}}),
            "CSV: column \"b\" is not in the header, which has a, x, y");
  EXPECT_THAT(complaint({.columns = {a}, .separator = '"'}), HasSubstr("separator \"\\\"\""));
  EXPECT_THAT(complaint({.columns = {a}, .separator = '\n'}), HasSubstr("separator \"\\n\""));
  EXPECT_THAT(complaint({.columns = {a}, .separator = '\0'}), HasSubstr("separator \"\\x00\""));
}

TEST(CsvParser, RefusesAnOtherValueThatIsNotOfItsColumn) {
  const auto complaint = [](CsvColumn column) { return complaint_about_csv({.columns = {std::move(column)}}, {}); };

  EXPECT_EQ(complaint({.name = "a", .type = Type::kInt32, .otherwise = 0.5}),
            "CSV: column \"a\": otherwise 0.5, expected a value of int32");
  EXPECT_THAT(complaint({.name = "a", .type = Type::kInt32, .otherwise = int64_t{1} << 31}), HasSubstr("2147483648"));
  EXPECT_THAT(complaint({.name = "a", .type = Type::kFloat, .otherwise = 1e300}), HasSubstr("1e+300"));
  EXPECT_THAT(complaint({.name = "a", .type = Type::kDouble, .otherwise = "x"}), HasSubstr("otherwise \"x\""));
  EXPECT_THAT(complaint({.name = "a", .type = Type::kString, .otherwise = 0}), HasSubstr("a value of string"));
  EXPECT_EQ(complaint({.name = "a", .type = Type::kDouble, .otherwise = 1e300}), "none");
}

TEST(CsvFields, AreThoseOfAHeader) {
  EXPECT_THAT(csv_fields("a,b c,,d"), ElementsAre("a", "b c", "", "d"));
  EXPECT_THAT(csv_fields(R"("a, ""b""",c)"), ElementsAre("a, \"b\"", "c"));
  EXPECT_THAT(csv_fields("a\tb", '\t'), ElementsAre("a", "b"));
  EXPECT_THAT(csv_fields("\"a,b\",", ',', false), ElementsAre("\"a", "b\"", ""));
  EXPECT_THAT(csv_fields(""), ElementsAre(""));
  EXPECT_THAT(csv_fields("\xef\xbb\xbf\"a\",b"), ElementsAre("a", "b"));
}

TEST(CsvFields, NameTheFieldWhoseQuotesAreWrong) {
  try {
    csv_fields("a,\"b");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(error.status().message(), "CSV: header: field 2: \"\\\"b\": the quote is not closed");
  }
}

}  // namespace muster::csv_parser_test
