#include "muster/runtime/executor/plan_memory.h"

#include <gtest/gtest.h>

#include "muster/graph/checker.h"
#include "muster/graph/test_program.h"

namespace muster {
namespace {

using testing_support::Builder;
using testing_support::ref;

TEST(PlanMemory, IsSeenWhereAnyValueThatSharesItIs) {
  Builder b;
  const ValueId x = b.argument(), v = b.variable("v"), two = b.constant(2), table = b.constant(3, /*is_number=*/false);
  const ValueId view = b.op("aten::t", {ref(v)}), alone = b.relu(x);
  const Program program = b.finish({view});
  check(program);
  const Aliases aliases(program);

  const PlanMemory memory(program, aliases);

  EXPECT_TRUE(memory.seen(memory.group(x)).argument);
  EXPECT_FALSE(memory.seen(memory.group(x)).output);
  EXPECT_EQ(memory.group(view), memory.group(v));
  EXPECT_TRUE(memory.seen(memory.group(v)).variable);
  EXPECT_TRUE(memory.seen(memory.group(v)).output) << "by its view";
  EXPECT_TRUE(memory.seen(memory.group(two)).number);
  EXPECT_FALSE(memory.seen(memory.group(two)).constant);
  EXPECT_TRUE(memory.seen(memory.group(table)).constant);
  EXPECT_FALSE(memory.seen(memory.group(alone)).anywhere());
}

TEST(PlanMemory, KnowsValuesThatWereAddedSinceThenForOnesThatShareNothing) {
  Builder b;
  const ValueId x = b.argument();
  Program program = b.finish({b.relu(x)});
  check(program);
  const Aliases aliases(program);
  const PlanMemory memory(program, aliases);

  EXPECT_EQ(memory.group(program.new_value()), PlanMemory::kNoGroup);
  EXPECT_EQ(memory.group(kNoValue), PlanMemory::kNoGroup);
  EXPECT_NE(memory.group(x), PlanMemory::kNoGroup);
}

}  // namespace
}  // namespace muster
