#include "muster/graph/aliases.h"

#include <gtest/gtest.h>

#include "muster/graph/test_program.h"

namespace muster {
namespace {

using namespace testing_support;

TEST(Aliases, KeepsResultsOfPlainOpsApartFromTheirArguments) {
  Builder b;
  ValueId x = b.argument(), y = b.relu(x);

  Aliases aliases(b.program);

  EXPECT_NE(aliases.group(x), aliases.group(y));
  EXPECT_FALSE(aliases.written(aliases.group(x)));
}

TEST(Aliases, PutsAViewIntoTheGroupOfItsSource) {
  Builder b;
  ValueId x = b.argument(), view = b.op("aten::t", {ref(x)});
  ValueId quiet = b.op("aten::_unsafe_view", {ref(view), integers({4})});

  Aliases aliases(b.program);

  EXPECT_EQ(aliases.group(x), aliases.group(view));
  EXPECT_EQ(aliases.group(x), aliases.group(quiet));
}

TEST(Aliases, PutsTheElementsOfAListIntoTheGroupOfTheirSource) {
  Builder b;
  ValueId x = b.argument();
  size_t split = b.instruction("aten::split.Tensor", {ref(x), integer(1), integer(0)}, {2});
  const auto parts = b.program.instructions[split].results[0];
  ValueId joined = b.op("aten::cat", {refs(parts), integer(0)});

  Aliases aliases(b.program);

  EXPECT_EQ(aliases.group(x), aliases.group(parts[0]));
  EXPECT_EQ(aliases.group(x), aliases.group(parts[1]));
  EXPECT_NE(aliases.group(x), aliases.group(joined));
}

TEST(Aliases, KnowsWhoWrites) {
  Builder b;
  ValueId w = b.variable("w"), x = b.argument(), view = b.op("aten::t", {ref(w)});
  ValueId result = b.add_(view, x);
  ValueId out = b.op("aten::add.out", {ref(x), ref(x), integer(1), ref(b.relu(x))});

  Aliases aliases(b.program);

  EXPECT_EQ(aliases.group(result), aliases.group(w));
  EXPECT_TRUE(aliases.written(aliases.group(w)));
  EXPECT_FALSE(aliases.writes(0, aliases.group(w)));
  EXPECT_TRUE(aliases.writes(1, aliases.group(w)));
  EXPECT_FALSE(aliases.writes(1, aliases.group(x)));
  EXPECT_TRUE(aliases.writes(3, aliases.group(out)));
}

TEST(Aliases, KeepsTheTensorsOfAForeachUpdateApart) {
  Builder b;
  ValueId v = b.variable("v"), w = b.variable("w"), x = b.argument();
  b.instruction("aten::_foreach_add_.List", {refs({v, w}), refs({x, x}), integer(1)}, {});

  Aliases aliases(b.program);

  EXPECT_NE(aliases.group(v), aliases.group(w));
  EXPECT_EQ(aliases.written_groups(0).size(), 2u);
}

TEST(Aliases, KnowsThatBatchNormWritesItsStatistics) {
  Builder b;
  ValueId x = b.argument(), mean = b.variable("mean"), var = b.variable("var");
  b.instruction("aten::native_batch_norm",
                {ref(x), {None{}}, {None{}}, ref(mean), ref(var), {true}, number(0.1), number(1e-5)}, {1, 1, 1});

  Aliases aliases(b.program);

  EXPECT_TRUE(aliases.writes(0, aliases.group(mean)));
  EXPECT_TRUE(aliases.writes(0, aliases.group(var)));
  EXPECT_FALSE(aliases.writes(0, aliases.group(x)));
}

TEST(Aliases, KnowsThatBatchNormKeepsItsStatisticsWhenNothingIsTrained) {
  Builder b;
  ValueId x = b.argument(), mean = b.variable("mean"), var = b.variable("var");
  b.instruction("aten::native_batch_norm",
                {ref(x), {None{}}, {None{}}, ref(mean), ref(var), {false}, number(0.1), number(1e-5)}, {1, 1, 1});

  Aliases aliases(b.program);

  EXPECT_FALSE(aliases.written(aliases.group(mean)));
  EXPECT_FALSE(aliases.written(aliases.group(var)));
}

TEST(Aliases, SeesThroughALoop) {
  Program program = loop_program();
  ValueId x = program.arguments[0].value, w = program.arguments[1].value, counter = program.variables[0].value;

  Aliases aliases(program);

  EXPECT_TRUE(aliases.writes(0, aliases.group(counter)));
  EXPECT_FALSE(aliases.writes(0, aliases.group(x)));
  EXPECT_FALSE(aliases.writes(0, aliases.group(w)));
  EXPECT_EQ(aliases.group(program.outputs[0]), aliases.group(x)) << "after no trip at all";
  EXPECT_NE(aliases.group(program.outputs[0]), aliases.group(w));
}

TEST(Aliases, JoinsTheResultOfACondWithTheInputThatABranchReturns) {
  Builder then("then"), otherwise("else");
  ValueId a = then.argument();
  then.argument();
  Program yes = then.finish({a});
  otherwise.argument();
  Program no = otherwise.finish({otherwise.relu(otherwise.argument())});
  Builder b;
  ValueId p = b.argument({DType::kBool, {}}), x = b.argument(), y = b.argument();
  int32_t first = b.body(yes), second = b.body(no);
  size_t cond = b.instruction(kCond.name, {ref(p), refs({x, y})}, {1}, "", {first, second});

  Aliases aliases(b.program);

  ValueId result = b.program.instructions[cond].results[0][0];
  EXPECT_EQ(aliases.group(result), aliases.group(x));
  EXPECT_NE(aliases.group(result), aliases.group(y));
}

TEST(Aliases, TellsABodyWhichOfItsArgumentsAreOneTensor) {
  Builder inside("then");
  ValueId a = inside.argument(), c = inside.argument(), d = inside.argument();
  Program body = inside.finish({});
  Builder b;
  ValueId p = b.argument({DType::kBool, {}}), x = b.argument(), y = b.argument(), view = b.op("aten::t", {ref(x)});
  int32_t first = b.body(body), second = b.body(body);
  b.instruction(kCond.name, {ref(p), refs({x, y, view})}, {0}, "", {first, second});

  Aliases outside(b.program);
  Aliases aliases(body, outside.argument_classes(0));

  EXPECT_EQ(aliases.group(a), aliases.group(d));
  EXPECT_NE(aliases.group(a), aliases.group(c));
}

TEST(BodyAliases, AreFoundOnceAndAsTheirCallerJoinsTheirArguments) {
  Builder inside("then");
  ValueId a = inside.argument(), c = inside.argument();
  Program body = inside.finish({});
  Builder b;
  ValueId p = b.argument({DType::kBool, {}}), x = b.argument();
  int32_t first = b.body(body), second = b.body(body);
  b.instruction(kCond.name, {ref(p), refs({x, b.op("aten::t", {ref(x)})})}, {0}, "", {first, second});
  Aliases outside(b.program);
  BodyAliases bodies;

  const Aliases& found = bodies.of(b.program, outside, 0);

  EXPECT_EQ(found.group(a), found.group(c));
  EXPECT_EQ(&bodies.of(b.program, outside, 0), &found);
  EXPECT_NE(&bodies.of(b.program, outside, 1), &found);
}

}  // namespace
}  // namespace muster
