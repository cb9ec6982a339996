#include "muster/io/json_words.h"

#include <gtest/gtest.h>

#include <string_view>

namespace muster {
namespace {

std::string words_about(std::string_view text) {
  try {
    (void)nlohmann::json::parse(text).at("step").get<std::string>();
    return "";
  } catch (const nlohmann::json::exception& error) {
    return json_words(error, text.size());
  }
}

TEST(JsonWords, SayWhereATextIsNoJson) {
  EXPECT_EQ(words_about(R"({"step": "1"})"), "");
  EXPECT_EQ(words_about("{,}"), "not JSON: byte 2 is not expected there");
  EXPECT_EQ(words_about("{}}"), "not JSON: byte 3 is not expected there");
  EXPECT_EQ(words_about("[1e999]"), "not JSON: a number is too large");
}

TEST(JsonWords, SayThatATextIsCut) {
  for (const char* cut : {"", "{", R"({"ste)", R"({"step")", R"({"step": tru)", R"({"step": -)", R"({"step": "1")"}) {
    EXPECT_EQ(words_about(cut), "not JSON: it ends too early") << cut;
  }
}

TEST(JsonWords, NameTheEntryThatIsMissing) {
  EXPECT_EQ(words_about("{}"), "an entry is missing: key 'step' not found");
  EXPECT_EQ(words_about(R"({"step": 1})"), "an entry is missing, or of another kind than expected");
  EXPECT_EQ(words_about("null"), "an entry is missing, or of another kind than expected");
}

}  // namespace
}  // namespace muster
