#include "muster/data/preprocessing/preprocessing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "muster/base/status.h"
#include "muster/data/preprocessing/preprocessing_layers.h"
#include "muster/data/preprocessing/test_columns.h"

namespace muster::preprocessing_test {

using ::testing::HasSubstr;
using State = Preprocessing::State;

std::vector<std::shared_ptr<const Preprocessing>> one_of_each() {
  return {
      hashing({.bins = 10}),
      hashing({.bins = 10, .mask_value = "m", .salt = {{1, ~uint64_t{0}}}}),
      hashing({.bins = 10, .mask_value = -3}),
      string_lookup({.vocabulary = {"a", "", "[UNK]"}, .num_oov_indices = 2, .mask_token = "m"}),
      string_lookup({.vocabulary = {"a", "b"}, .invert = true}),
      integer_lookup({.vocabulary = {3, 5}, .mask_token = 0, .output_mode = OutputMode::kCount}),
      category_encoding({.num_tokens = 3, .output_mode = OutputMode::kOneHot}),
      discretization({.bin_boundaries = {0.5f, 2}, .output_mode = OutputMode::kMultiHot}),
      normalization({.axis = {-1}, .mean = float_tensor({1, 2}), .variance = float_tensor({4, 9}), .invert = true}),
      text_vectorization({.vocabulary = {"a"}, .split = Split::kCharacter, .ngrams = 2, .output_sequence_length = 3}),
      text_vectorization({.vocabulary = {"a"}, .standardize = Standardize::kNone, .output_mode = OutputMode::kCount})};
}

std::string words_of_state(const State& state) {
  std::string words = state.kind;
  for (const auto& [name, value] : state.values) words += " " + name + "=" + content(value);
  return words;
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    return error.what();
  }
  return "no error";
}

TEST(Preprocessing, IsMadeAgainFromItsState) {
  for (const auto& layer : one_of_each()) {
    const auto again = preprocessing_from(layer->state());

    EXPECT_EQ(words_of_state(again->state()), words_of_state(layer->state()));
  }
}

TEST(Preprocessing, MadeFromAStateGivesTheSame) {
  const Column words = strings({"a", "b", "m", "", "[UNK]"});
  const auto lookup = one_of_each()[3];

  EXPECT_EQ(content((*preprocessing_from(lookup->state()))(words)), content((*lookup)(words)));
}

TEST(Preprocessing, KeepsAVocabularyThatBeginsLikeTheSpecialTokens) {
  const auto layer = string_lookup({.vocabulary = {"[UNK]", "[UNK]", "a"}});

  const auto again = preprocessing_from(layer->state());

  EXPECT_EQ(content((*layer)(strings({"[UNK]", "a", "b"}))), "int64[3] 1 2 0");
  EXPECT_EQ(content((*again)(strings({"[UNK]", "a", "b"}))), "int64[3] 1 2 0");
}

TEST(Preprocessing, RefusesAStateOfAnUnknownKind) {
  EXPECT_THAT(error_of([] { preprocessing_from({"rot13", {}}); }), HasSubstr("kind \"rot13\" is not known"));
}

TEST(Preprocessing, RefusesAStateThatLacksAValue) {
  for (const auto& layer : one_of_each()) {
    for (const auto& [name, value] : layer->state().values) {
      if (name == "mask_value" || name == "mask_token" || name == "salt" || name == "output_sequence_length") continue;
      State state = layer->state();
      state.values.erase(name);

      EXPECT_THAT(error_of([&] { preprocessing_from(state); }), HasSubstr("there is no \"" + name + "\""));
    }
  }
}

TEST(Preprocessing, RefusesAStateWithAValueThatTheLayerDoesNotKnow) {
  for (const auto& layer : one_of_each()) {
    State state = layer->state();
    state.values["more"] = strings({"x"});

    EXPECT_THAT(error_of([&] { preprocessing_from(state); }), HasSubstr("of which the layer knows"));
  }
}

TEST(Preprocessing, RefusesAStateWithAValueOfAnotherType) {
  Strings empty;
  const std::vector<Column> odd{Column(),
                                empty,
                                strings({"a", "b"}, {2, 1}),
                                float_tensor({1, 2}).reshape({1, 2, 1}),
                                float_tensor({1}).to(at::kDouble),
                                int_tensor({1, 1, 1}).to(at::kInt)};
  for (const auto& layer : one_of_each()) {
    for (const auto& [name, value] : layer->state().values) {
      for (const Column& other : odd) {
        State state = layer->state();
        state.values[name] = other;

        EXPECT_NE(error_of([&] { preprocessing_from(state); }), "no error") << layer->state().kind << " " << name;
      }
    }
  }
}

TEST(Preprocessing, RefusesAStateWithNumbersThatMakeNoLayer) {
  const auto refuses = [](std::shared_ptr<const Preprocessing> layer, const std::string& name, const Column& value) {
    State state = layer->state();
    state.values[name] = value;
    return error_of([&] { preprocessing_from(state); });
  };
  const Column minus = int_number(-1), much = int_number(std::numeric_limits<int64_t>::max());
  const auto layers = one_of_each();

  EXPECT_THAT(refuses(layers[0], "bins", int_number(0)), HasSubstr("bins 0: expected at least 1"));
  EXPECT_THAT(refuses(layers[1], "salt", int_tensor({1, 2, 3})), HasSubstr("salt of 3 numbers"));
  EXPECT_THAT(refuses(layers[3], "num_oov_indices", minus), HasSubstr("num_oov_indices -1"));
  EXPECT_THAT(refuses(layers[3], "num_oov_indices", much), HasSubstr("at most 2147483647"));
  EXPECT_THAT(refuses(layers[3], "vocabulary", strings({"a", "a"})),
              HasSubstr("token \"a\" at 1: there are two of it"));
  EXPECT_THAT(refuses(layers[3], "invert", int_number(2)), HasSubstr("\"invert\" is 2, expected 0 or 1"));
  EXPECT_THAT(refuses(layers[5], "invert", int_number(1)), HasSubstr("the inverse has output_mode \"int\""));
  EXPECT_THAT(refuses(layers[6], "num_tokens", much), HasSubstr("at most 2147483647"));
  EXPECT_THAT(refuses(layers[7], "bin_boundaries", float_tensor({2, 1})), HasSubstr("expected ascending numbers"));
  EXPECT_THAT(refuses(layers[8], "variance", float_tensor({1, -1})), HasSubstr("no negative variance"));
  EXPECT_THAT(refuses(layers[8], "axis", int_tensor({})), HasSubstr("of at most 0 dimensions"));
  EXPECT_THAT(refuses(layers[9], "ngrams", minus), HasSubstr("ngrams -1"));
  EXPECT_THAT(refuses(layers[9], "output_sequence_length", int_number(0)), HasSubstr("output_sequence_length 0"));
  EXPECT_THAT(refuses(layers[9], "split", Column(Strings("line"))),
              HasSubstr("\"split\" is \"line\", expected one of"));
  EXPECT_THAT(refuses(layers[9], "output_mode", Column(Strings("one_hot"))), HasSubstr("output_mode \"one_hot\""));
}

TEST(Preprocessing, NamesTheLayerWhatCameAndWhatWasExpected) {
  const Column words = strings({"a", "b"}), halves = float_tensor({0.5f});
  const auto layers = one_of_each();

  EXPECT_THAT(error_of([&] { (*layers[0])(halves); }),
              HasSubstr("hashing: got float32[1], expected strings or whole numbers"));
  EXPECT_THAT(error_of([&] { (*layers[3])(halves); }), HasSubstr("string_lookup: got float32[1], expected strings"));
  EXPECT_THAT(error_of([&] { (*layers[5])(words); }),
              HasSubstr("integer_lookup: got string[2], expected whole numbers"));
  EXPECT_THAT(error_of([&] { (*layers[6])(halves); }), HasSubstr("category_encoding: got float32[1]"));
  EXPECT_THAT(error_of([&] { (*layers[7])(words); }), HasSubstr("discretization: got string[2], expected numbers"));
  EXPECT_THAT(error_of([&] { (*layers[8])(words); }), HasSubstr("normalization: got string[2], expected numbers"));
  EXPECT_THAT(error_of([&] { (*layers[9])(halves); }), HasSubstr("text_vectorization: got float32[1]"));
}

TEST(Preprocessing, RefusesAColumnWithoutATensor) {
  for (const auto& layer : one_of_each()) EXPECT_NE(error_of([&] { (*layer)(Column()); }), "no error");
}

TEST(Preprocessing, TakesColumnsWithoutAnyElements) {
  Strings none;
  none.shape({0, 1});

  EXPECT_EQ(content((*hashing({.bins = 3}))(none)), "int64[0, 1]");
  EXPECT_EQ(content((*string_lookup({.vocabulary = {"a"}, .output_mode = OutputMode::kCount}))(none)), "float32[0, 2]");
  EXPECT_EQ(content((*text_vectorization({.vocabulary = {"a"}}))(none)), "int64[0, 0]");
  EXPECT_EQ(content((*normalization({.mean = float_tensor({1}), .variance = float_tensor({1})}))(
                float_tensor({}).reshape({0, 3}))),
            "float32[0, 3]");
}

}  // namespace muster::preprocessing_test
