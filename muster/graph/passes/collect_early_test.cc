#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/graph/checker.h"
#include "muster/graph/passes/passes.h"
#include "muster/graph/test_program.h"

namespace muster {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;

// One word for each instruction: the last part of its op's name, with the purpose of a collective.
std::vector<std::string> order_of(const Program& program) {
  std::vector<std::string> words;
  for (const Instruction& instruction : program.instructions) {
    const std::string& name = program.op_of(instruction).name;
    words.push_back(name == kCollective.name ? std::get<std::string>(instruction.arguments[5].value) : name.substr(6));
  }
  return words;
}

class CollectEarly : public testing::Test {
 protected:
  ValueId sum(ValueId value, const std::string& purpose) {
    const size_t made = b.instruction(kCollective.name,
                                      {refs({value}), integer(1), integer(0), integer(0), integer(0), {purpose}}, {1});
    return b.program.instructions[made].results[0][0];
  }

  Builder b;
};

TEST_F(CollectEarly, BeginsASumWhenItsOperandIsThere) {
  const ValueId x = b.argument(), last = b.relu(x), first = b.add(last, x);
  Program program = b.finish({sum(last, "last"), sum(first, "first")});

  EXPECT_EQ(collect_early(program), 1);

  EXPECT_THAT(order_of(program), ElementsAre("relu", "last", "add.Tensor", "first"));
  check(program);
}

TEST_F(CollectEarly, KeepsTheOrderOfSums) {
  const ValueId x = b.argument(), early = b.relu(x), late = b.add(early, x);
  b.op("aten::t", {ref(late)});
  Program program = b.finish({sum(late, "one"), sum(early, "two"), sum(x, "three")});

  collect_early(program);

  EXPECT_THAT(order_of(program), ElementsAre("relu", "add.Tensor", "one", "two", "three", "t"));
  check(program);
}

TEST_F(CollectEarly, KeepsTheOrderOfSumsWhenTheFirstStaysWhereItIs) {
  const ValueId x = b.argument(), early = b.relu(x), late = b.add(early, x);
  Program program = b.finish({sum(late, "one"), sum(early, "two"), sum(x, "three")});

  EXPECT_EQ(collect_early(program), 0);

  EXPECT_THAT(order_of(program), ElementsAre("relu", "add.Tensor", "one", "two", "three"));
}

TEST_F(CollectEarly, WaitsForTheLastWriteToWhatItSums) {
  const ValueId x = b.argument(), buffer = b.relu(x), view = b.op("aten::t", {ref(buffer)});
  b.add_(view, x);
  b.relu(x);
  Program program = b.finish({sum(buffer, "sum")});

  EXPECT_EQ(collect_early(program), 1);

  EXPECT_THAT(order_of(program), ElementsAre("relu", "t", "add_.Tensor", "sum", "relu"));
}

TEST_F(CollectEarly, PutsNothingBeforeASumThatItNeeds) {
  const ValueId x = b.argument(), summed = sum(b.relu(x), "one"), used = b.add(summed, x);
  b.relu(x);
  Program program = b.finish({sum(used, "two")});

  collect_early(program);

  EXPECT_THAT(order_of(program), ElementsAre("relu", "one", "add.Tensor", "two", "relu"));
  check(program);
}

TEST_F(CollectEarly, LetsCopiesBeginWhenTheirSourceIsThereInAnyOrder) {
  const ValueId x = b.argument(), w = b.variable("w"), late = b.relu(x);
  b.add_(w, x);
  const ValueId copy_of_late = b.op(kCopy.name, {ref(late)}), copy_of_x = b.op(kCopy.name, {ref(x)}),
                copy_of_w = b.op(kCopy.name, {ref(w)});
  Program program = b.finish({copy_of_late, copy_of_x, copy_of_w});

  EXPECT_EQ(copy_early(program), 2);

  EXPECT_THAT(order_of(program), ElementsAre("::copy", "relu", "::copy", "add_.Tensor", "::copy"));
  EXPECT_EQ(program.instructions[0].results[0][0], copy_of_x);
  EXPECT_EQ(program.instructions[2].results[0][0], copy_of_late);
}

TEST_F(CollectEarly, LetsCopiesOfViewsBeginWithTheirViews) {
  const ValueId x = b.argument(), w = b.variable("w"), made = b.relu(x);
  Program program = b.finish({made, b.op(kCopy.name, {ref(b.op("aten::t", {ref(w)}))})});

  EXPECT_EQ(copy_early(program), 2);

  EXPECT_THAT(order_of(program), ElementsAre("t", "::copy", "relu"));
}

TEST_F(CollectEarly, LeavesAProgramWithoutSumsAlone) {
  const ValueId x = b.argument();
  Program program = b.finish({b.relu(b.add(x, x))});

  EXPECT_EQ(collect_early(program), 0);
}

}  // namespace
}  // namespace muster
