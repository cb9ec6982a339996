#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "muster/base/status.h"
#include "muster/data/preprocessing/preprocessing_layers.h"
#include "muster/data/preprocessing/test_columns.h"

namespace muster::text_vectorization_test {

using ::testing::HasSubstr;

std::string text_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(TextVectorization, NumbersTheWordsAndFillsUp) {
  const auto layer = text_vectorization({.vocabulary = {"earth", "wind", "and", "fire"}});
  const std::vector<std::string_view> texts{"Earth, WIND!", " and\tfire  water\n"};

  EXPECT_EQ(content((*layer)(strings(texts))), "int64[2, 3] 2 3 0 4 5 1");
  EXPECT_EQ(content((*layer)(strings(texts, {2, 1}))), "int64[2, 3] 2 3 0 4 5 1");
  EXPECT_EQ(content((*layer)(Strings("fire and"))), "int64[2] 5 4");
}

TEST(TextVectorization, CutsAndFillsUpToTheLength) {
  const auto layer = text_vectorization({.vocabulary = {"", "[UNK]", "a", "b"}, .output_sequence_length = 2});

  EXPECT_EQ(content((*layer)(strings({"a b a", "b", ""}))), "int64[3, 2] 2 3 3 0 0 0");
}

TEST(TextVectorization, LowersAndStripsOnlyAscii) {
  const auto layer = [](Standardize standardize) {
    return text_vectorization({.vocabulary = {"a-\xc3\x89", "a\xc3\x89", "A-\xc3\x89", "A\xc3\x89"},
                               .standardize = standardize,
                               .output_sequence_length = 1});
  };
  const Column text = strings({"A-\xc3\x89"});

  EXPECT_EQ(content((*layer(Standardize::kLower))(text)), "int64[1, 1] 2");
  EXPECT_EQ(content((*layer(Standardize::kLowerAndStripPunctuation))(text)), "int64[1, 1] 3");
  EXPECT_EQ(content((*layer(Standardize::kNone))(text)), "int64[1, 1] 4");
  EXPECT_EQ(content((*layer(Standardize::kStripPunctuation))(text)), "int64[1, 1] 5");
}

TEST(TextVectorization, SplitsCharactersAndReplacesWhatIsNone) {
  const auto layer = text_vectorization({.vocabulary = {"a", "\xc3\xa9", "\xef\xbf\xbd"}, .split = Split::kCharacter});

  EXPECT_EQ(content((*layer)(strings({"a\xc3\xa9"}))), "int64[1, 2] 2 3");
  EXPECT_EQ(content((*layer)(strings({"\xe6\xbc"
                                      "a\xed\xa0\x80\xff"}))),
            "int64[1, 6] 4 2 4 4 4 4");
}

TEST(TextVectorization, TakesTheLastDimensionForTokensThatAreSplit) {
  const auto layer = text_vectorization({.vocabulary = {"a b", "c"}, .split = Split::kNone});

  EXPECT_EQ(content((*layer)(strings({"A b", "c", "", "a"}, {2, 2}))), "int64[2, 2] 2 3 0 1");
  EXPECT_EQ(content((*layer)(Strings("c"))), "int64[] 3");
}

TEST(TextVectorization, GivesTheWordsBeforeTheirPairs) {
  const auto layer = text_vectorization({.vocabulary = {"a", "b", "a b", "b a"}, .ngrams = 2});

  EXPECT_EQ(content((*layer)(strings({"a b a", "b"}))), "int64[2, 5] 2 3 2 4 5 3 0 0 0 0");
}

TEST(TextVectorization, CountsWithoutANumberForTheFilling) {
  const auto count = text_vectorization({.vocabulary = {"a", "b"}, .output_mode = OutputMode::kCount});
  const auto many = text_vectorization({.vocabulary = {"a", "b"}, .output_mode = OutputMode::kMultiHot});
  const Column texts = strings({"a x y a", ""});

  EXPECT_EQ(content((*count)(texts)), "float32[2, 3] 2 2 0 0 0 0");
  EXPECT_EQ(content((*many)(texts)), "float32[2, 3] 1 1 0 0 0 0");
}

TEST(TextVectorization, RefusesTextsItCannotSplit) {
  const auto layer = text_vectorization({.vocabulary = {"a"}});

  EXPECT_THAT(text_error([&] { (*layer)(strings({"a", "b"}, {1, 2})); }),
              HasSubstr("text_vectorization: got string[1, 2], expected one dimension or a last one of 1"));
}

TEST(TextVectorization, RefusesOptionsThatMakeNone) {
  const auto error = [](const TextVectorizationOptions& options) {
    return text_error([&] { text_vectorization(options); });
  };

  EXPECT_THAT(error({}), HasSubstr("the vocabulary is empty"));
  EXPECT_THAT(error({.vocabulary = {"a"}, .output_mode = OutputMode::kOneHot}), HasSubstr("output_mode \"one_hot\""));
  EXPECT_THAT(error({.vocabulary = {"a"}, .output_mode = OutputMode::kCount, .output_sequence_length = 3}),
              HasSubstr("output_sequence_length is for output_mode \"int\""));
  EXPECT_THAT(error({.vocabulary = {"a", "b"}, .max_tokens = 3}), HasSubstr("expected at most 3"));
}

TEST(TextVectorizationAdapter, LearnsTheVocabularyOfKeras) {
  const auto adapter = text_vectorization_adapter({.max_tokens = 5000, .output_sequence_length = 4});
  adapter->see(strings({"foo bar", "bar baz", "baz bada boom"}));

  const auto layer = adapter->finish();

  EXPECT_EQ(content((*layer)(strings({"foo qux bar", "qux baz"}, {2, 1}))), "int64[2, 4] 4 1 3 0 1 2 0 0");
}

TEST(TextVectorizationAdapter, LearnsPairsToo) {
  const auto adapter = text_vectorization_adapter({.max_tokens = 5, .ngrams = 2});
  adapter->see(strings({"a b", "A b!", "a"}));

  EXPECT_EQ(content(adapter->finish()->state().values.at("vocabulary")), R"(string[3] "a" "b" "a b")");
}

}  // namespace muster::text_vectorization_test
