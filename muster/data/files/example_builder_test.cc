#include "muster/data/files/example_builder.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace muster::example_builder_test {

using namespace std::string_view_literals;

TEST(ExampleBuilder, WritesTheBytesThatProtobufWrites) {
  const std::string bytes = ExampleBuilder().floats("d", {1.0f}).serialize();

  EXPECT_EQ(bytes,
            "\x0a\x0f\x0a\x0d\x0a\x01"sv
            "d\x12\x08\x12\x06\x0a\x04\x00\x00\x80\x3f"sv);
}

TEST(ExampleBuilder, WritesLargeAndNegativeNumbersAsVarints) {
  const std::string bytes =
      ExampleBuilder().int64s("c", {0, 127, 128, 99999, -1, std::numeric_limits<int64_t>::min()}).serialize();

  EXPECT_EQ(bytes,
            "\x0a\x26\x0a\x24\x0a\x01"sv
            "c\x12\x1f\x1a\x1d\x0a\x1b"sv
            "\x00\x7f\x80\x01\x9f\x8d\x06"sv
            "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"sv
            "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"sv);
}

TEST(ExampleBuilder, WritesStringsOfAnyBytes) {
  const std::string bytes = ExampleBuilder().strings("s", {"a\0b"sv, ""}).serialize();

  EXPECT_EQ(bytes,
            "\x0a\x10\x0a\x0e\x0a\x01"sv
            "s\x12\x09\x0a\x07\x0a\x03"sv
            "a\0b"sv
            "\x0a\x00"sv);
}

TEST(ExampleBuilder, SortsTheNames) {
  const std::string one = ExampleBuilder().int64s("b", {1}).int64s("a", {2}).serialize();
  const std::string other = ExampleBuilder().int64s("a", {2}).int64s("b", {1}).serialize();

  EXPECT_EQ(one, other);
  EXPECT_LT(one.find('a'), one.find('b'));
}

TEST(ExampleBuilder, KeepsTheLaterOfTwoFeaturesWithOneName) {
  EXPECT_EQ(ExampleBuilder().int64s("a", {1}).floats("a", {2}).serialize(),
            ExampleBuilder().floats("a", {2}).serialize());
}

TEST(ExampleBuilder, WritesTheSameFromVectorsAndFromLists) {
  const std::vector<float> floats{1, 2};
  const std::vector<int64_t> int64s{3, 4};
  const std::vector<std::string> strings{"five"};

  EXPECT_EQ(ExampleBuilder().floats("f", floats).int64s("i", int64s).strings("s", strings).serialize(),
            ExampleBuilder().floats("f", {1, 2}).int64s("i", {3, 4}).bytes("s", "five").serialize());
}

TEST(ExampleBuilder, WritesAnEmptyListAsAListWithoutValues) {
  EXPECT_EQ(ExampleBuilder().floats("d", {}).serialize(),
            "\x0a\x09\x0a\x07\x0a\x01"sv
            "d\x12\x02\x12\x00"sv);
}

TEST(ExampleBuilder, WritesNothingForAnExampleWithoutFeatures) { EXPECT_EQ(ExampleBuilder().serialize(), ""); }

TEST(SequenceExampleBuilder, WritesContextAndSteps) {
  const std::string bytes =
      SequenceExampleBuilder(ExampleBuilder().int64s("u", {7})).int64s("x", {1}).int64s("x", {2}).serialize();

  EXPECT_EQ(bytes,
            "\x0a\x0c\x0a\x0a\x0a\x01"sv
            "u\x12\x05\x1a\x03\x0a\x01\x07"sv
            "\x12\x15\x0a\x13\x0a\x01"sv
            "x\x12\x0e\x0a\x05\x1a\x03\x0a\x01\x01\x0a\x05\x1a\x03\x0a\x01\x02"sv);
}

TEST(SequenceExampleBuilder, HasListsWithoutSteps) {
  EXPECT_EQ(SequenceExampleBuilder().list("x").serialize(),
            "\x12\x07\x0a\x05\x0a\x01"sv
            "x\x12\x00"sv);
  EXPECT_EQ(SequenceExampleBuilder().floats("x", {1}).list("x").serialize(),
            SequenceExampleBuilder().floats("x", {1}).serialize());
}

}  // namespace muster::example_builder_test
