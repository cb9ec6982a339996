#include "muster/graph/elements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const ElementSpec kBatch{{DType::kFloat, {4, 3}}, {DType::kLong, {4}}},
    kRest{{DType::kFloat, {2, 3}}, {DType::kLong, {2}}};

// A program with a sequence as its argument, value 0.
Program of_sequence() {
  Program program;
  program.arguments.push_back({program.new_value(), {DType::kLong, {}}, 0});
  return program;
}

ValueId take(Program& program, ValueId number, const ElementSpec& element) {
  ArgumentList specs;
  for (int64_t value : numbers_of(element)) specs.push_back({value});
  Instruction next{.op = program.intern_op(kNext.name, kNext.schema)};
  next.arguments = {{ValueRef{number}}, {std::move(specs)}};
  next.results.emplace_back();
  for (size_t i = 0; i < element.size(); ++i) next.results[0].push_back(program.new_value());
  program.instructions.push_back(next);
  return next.results[0][0];
}

ValueId copy(Program& program, ValueId value) {
  Instruction copy{.op = program.intern_op(kCopy.name, kCopy.schema)};
  copy.arguments = {{ValueRef{value}}};
  copy.results = {{program.new_value()}};
  program.instructions.push_back(copy);
  return copy.results[0][0];
}

void repeat(Program& program, Program body) {
  Instruction loop{.op = program.intern_op(kLoop.name, kLoop.schema)};
  loop.bodies = {static_cast<int32_t>(program.bodies.size())};
  program.bodies.push_back(std::move(body));
  program.instructions.push_back(loop);
}

TEST(Elements, AreDescribedByNumbers) {
  EXPECT_THAT(numbers_of(kRest),
              ElementsAre(static_cast<int64_t>(DType::kFloat), 2, 2, 3, static_cast<int64_t>(DType::kLong), 1, 2));
  EXPECT_EQ(element_from(numbers_of(kRest)), kRest);
  EXPECT_EQ(describe_elements({kRest}), "(float32[2, 3], int64[2])");
  for (const std::vector<int64_t>& bad : {std::vector<int64_t>{0}, {0, 2, 5}, {999, 0}, {0, 1, -4}}) {
    EXPECT_THROW(element_from(bad), Error);
  }
}

TEST(Elements, AreTakenFirstInTheirOrder) {
  Program program = of_sequence();
  take(program, 0, kBatch);
  repeat(program, of_sequence());
  take(program, copy(program, 0), kRest);

  EXPECT_THAT(first_element_specs(program), ElementsAre(kBatch, kRest));
  EXPECT_EQ(first_elements(program)[1].number, 0) << "of which the other one is a copy";
}

TEST(Elements, AreNotTakenBeforeThoseOfAnEarlierLoop) {
  Program body = of_sequence();
  take(body, 0, kRest);
  Program program = of_sequence();
  take(program, 0, kBatch);
  repeat(program, std::move(body));
  take(program, 0, kBatch);

  EXPECT_THAT(first_element_specs(program), ElementsAre(kBatch));
}

TEST(Elements, OfAComputedSequenceOrOfAPartAreNotTakenFirst) {
  Program computed = of_sequence(), part = of_sequence();
  const ValueId number = take(computed, 0, kBatch);
  take(computed, number, kBatch);
  take(part, 0, kBatch);
  part.task = "/job:ps/task:0";

  EXPECT_THAT(first_element_specs(computed), ElementsAre(kBatch));
  EXPECT_THAT(first_element_specs(part), IsEmpty());
}

TEST(Elements, ThatWereNotExpectedAreInTheErrorButNotByItsWords) {
  const Error error = other_elements({kRest, kBatch}, {kBatch, kBatch});
  const Status same_words(error.code(), error.status().message());

  EXPECT_THAT(*other_elements_of(error.status().from("/job:worker/task:1")), ElementsAre(kRest, kBatch));
  EXPECT_EQ(other_elements_of(same_words), std::nullopt);
  for (const char* detail : {"elements x", "elements 3 0", "elements 2 0 5", "elements -1", "something else"}) {
    EXPECT_EQ(other_elements_of(Status(error.code(), "", "", detail)), std::nullopt) << detail;
  }
}

}  // namespace
}  // namespace muster
