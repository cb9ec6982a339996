#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "muster/base/status.h"
#include "muster/data/preprocessing/preprocessing_layers.h"
#include "muster/data/preprocessing/test_columns.h"

namespace muster::lookup_test {

using ::testing::HasSubstr;

std::string lookup_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(StringLookup, NumbersTheVocabularyAfterTheUnknown) {
  const auto layer = string_lookup({.vocabulary = {"a", "b"}});

  EXPECT_EQ(content((*layer)(strings({"b", "x", "a", ""}, {2, 2}))), "int64[2, 2] 2 0 1 0");
  EXPECT_EQ(content((*layer)(Strings("b"))), "int64[] 2");
}

TEST(StringLookup, NumbersTheMaskFirst) {
  const auto layer = string_lookup({.vocabulary = {"a", "b"}, .mask_token = ""});

  EXPECT_EQ(content((*layer)(strings({"b", "x", "a", ""}))), "int64[4] 3 1 2 0");
}

TEST(StringLookup, TakesAVocabularyWithTheSpecialTokensInFront) {
  const auto layer = string_lookup({.vocabulary = {"", "[UNK]", "a"}, .mask_token = ""});

  EXPECT_EQ(content((*layer)(strings({"a", "[UNK]", ""}))), "int64[3] 2 1 0");
}

TEST(StringLookup, SpreadsTheUnknownByTheirFingerprint) {
  const auto layer = string_lookup({.vocabulary = {"z"}, .num_oov_indices = 3});
  const auto bins = hashing({.bins = 3});
  const Column words = strings({"A", "B", "C", "D", "E"});

  EXPECT_EQ(content((*layer)(words)), "int64[5] 1 0 1 1 2");
  EXPECT_EQ(content((*layer)(words)), content((*bins)(words)));
  EXPECT_EQ(content((*layer)(strings({"z"}))), "int64[1] 3");
}

TEST(StringLookup, NamesAValueThatItHasNoNumberFor) {
  const auto layer = string_lookup({.vocabulary = {"a"}, .num_oov_indices = 0});

  EXPECT_EQ(content((*layer)(strings({"a"}))), "int64[1] 0");
  EXPECT_THAT(lookup_error([&] { (*layer)(strings({"a", "x"})); }), HasSubstr("string_lookup: value \"x\" is not in"));
}

TEST(StringLookup, TurnsNumbersBackWhenInverted) {
  const auto layer = string_lookup({.vocabulary = {"a", "b", "c"}, .mask_token = "m", .invert = true});

  EXPECT_EQ(content((*layer)(int_tensor({-1, 0, 1, 2, 3, 4, 5, 0}).reshape({2, 4}))),
            R"(string[2, 4] "[UNK]" "m" "[UNK]" "a" "b" "c" "[UNK]" "m")");
  EXPECT_EQ(content((*layer)(int_number(3))), R"(string[] "b")");
}

TEST(StringLookup, WritesRowsInTheOtherModes) {
  const auto layer = [](OutputMode mode) {
    return string_lookup({.vocabulary = {"a", "b"}, .mask_token = "", .output_mode = mode});
  };
  const Column words = strings({"b", "b", "x", ""}, {2, 2});

  EXPECT_EQ(content((*layer(OutputMode::kCount))(words)), "float32[2, 3] 0 0 2 1 0 0");
  EXPECT_EQ(content((*layer(OutputMode::kMultiHot))(words)), "float32[2, 3] 0 0 1 1 0 0");
  EXPECT_EQ(content((*layer(OutputMode::kOneHot))(words)), "float32[2, 2, 3] 0 0 1 0 0 1 1 0 0 0 0 0");
}

TEST(StringLookup, RefusesVocabulariesThatAreNone) {
  const auto error = [](const StringLookupOptions& options) { return lookup_error([&] { string_lookup(options); }); };

  EXPECT_THAT(error({}), HasSubstr("the vocabulary is empty"));
  EXPECT_THAT(error({.vocabulary = {"[UNK]"}}), HasSubstr("the vocabulary is empty"));
  EXPECT_THAT(error({.vocabulary = {"a", "b", "a"}}), HasSubstr("token \"a\" at 2: there are two of it"));
  EXPECT_THAT(error({.vocabulary = {"a", "m"}, .mask_token = "m"}), HasSubstr("\"m\" at 1: the mask token may only"));
  EXPECT_THAT(error({.vocabulary = {"a", "[UNK]"}, .invert = true}),
              HasSubstr("the oov token may only stand in front"));
  EXPECT_THAT(error({.vocabulary = {"a", "b"}, .max_tokens = 2}), HasSubstr("expected at most 2"));
  EXPECT_THAT(error({.vocabulary = {"a"}, .max_tokens = 1}), HasSubstr("max_tokens 1: expected at least 2"));
}

TEST(StringLookupAdapter, PutsTheMostFrequentFirstAndTheGreaterAmongEquals) {
  const auto adapter = string_lookup_adapter({.mask_token = "m"});
  adapter->see(strings({"a", "b", "c", "m", "[UNK]"}));
  adapter->see(strings({"d", "c", "\xff", "m"}, {2, 2}));

  const auto layer = adapter->finish();

  EXPECT_EQ(content(layer->state().values.at("vocabulary")), "string[5] \"c\" \"\xff\" \"d\" \"b\" \"a\"");
  EXPECT_EQ(content((*layer)(strings({"c", "a", "m", "x"}))), "int64[4] 2 6 0 1");
}

TEST(StringLookupAdapter, KeepsNoMoreThanMaxTokens) {
  const auto adapter = string_lookup_adapter({.max_tokens = 3});
  adapter->see(strings({"a", "b", "c", "a", "b", "a"}));

  EXPECT_EQ(content(adapter->finish()->state().values.at("vocabulary")), R"(string[2] "a" "b")");
}

TEST(StringLookupAdapter, MakesALayerMoreThanOnce) {
  const auto adapter = string_lookup_adapter();
  adapter->see(strings({"a"}));
  const auto first = adapter->finish();
  adapter->see(strings({"b", "b"}));

  EXPECT_EQ(content((*adapter->finish())(strings({"a", "b"}))), "int64[2] 2 1");
  EXPECT_EQ(content((*first)(strings({"a", "b"}))), "int64[2] 1 0");
}

TEST(StringLookupAdapter, RefusesToFinishWithoutAVocabulary) {
  const auto adapter = string_lookup_adapter();
  adapter->see(strings({"[UNK]"}));

  EXPECT_THAT(lookup_error([&] { adapter->finish(); }), HasSubstr("FAILED_PRECONDITION"));
}

TEST(StringLookupAdapter, RefusesOptionsThatLeaveNothingToLearn) {
  EXPECT_THAT(lookup_error([] { string_lookup_adapter({.vocabulary = {"a"}}); }), HasSubstr("expected none"));
  EXPECT_THAT(lookup_error([] { string_lookup_adapter({.num_oov_indices = 2, .max_tokens = 2}); }),
              HasSubstr("leaves no room beside 2 special tokens"));
}

TEST(IntegerLookup, NumbersTheVocabulary) {
  const auto layer = integer_lookup({.vocabulary = {12, -36, 1138}, .mask_token = 0});

  EXPECT_EQ(content((*layer)(int_tensor({1138, 5, 0, -36}).to(at::kInt))), "int64[4] 4 1 0 3");
}

TEST(IntegerLookup, SpreadsTheUnknownByTheirRemainder) {
  const auto layer = integer_lookup({.vocabulary = {100}, .num_oov_indices = 3});

  EXPECT_EQ(content((*layer)(int_tensor({-4, -3, -1, 0, 1, 5, 100}))), "int64[7] 2 0 2 0 1 2 3");
}

TEST(IntegerLookup, TurnsNumbersBackWhenInverted) {
  const auto layer = integer_lookup({.vocabulary = {7, 9}, .invert = true});

  EXPECT_EQ(content((*layer)(int_tensor({0, 1, 2, 3}))), "int64[4] -1 7 9 -1");
}

TEST(IntegerLookup, NamesAValueThatItHasNoNumberFor) {
  const auto layer = integer_lookup({.vocabulary = {7}, .num_oov_indices = 0});

  EXPECT_THAT(lookup_error([&] { (*layer)(int_tensor({7, 8})); }), HasSubstr("integer_lookup: value 8 is not in"));
}

TEST(IntegerLookupAdapter, LearnsAsThatOfStrings) {
  const auto adapter = integer_lookup_adapter({.mask_token = 0});
  adapter->see(int_tensor({3, 3, -1, 0, 0, 0, 20, 5, 5}));

  EXPECT_EQ(content(adapter->finish()->state().values.at("vocabulary")), "int64[3] 5 3 20");
}

}  // namespace muster::lookup_test
