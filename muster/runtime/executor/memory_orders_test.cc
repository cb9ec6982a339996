#include "muster/runtime/executor/memory_orders.h"

#include <gtest/gtest.h>

#include "muster/graph/checker.h"
#include "muster/graph/test_program.h"

namespace muster::memory_orders_test {

using testing_support::Builder;
using testing_support::integer;
using testing_support::ref;

bool is_fixed(const Program& program, ValueId value) {
  check(program);
  const Aliases aliases(program);
  return fixed_orders(program, aliases)[aliases.group(value)];
}

TEST(MemoryOrders, LeavesThatOfAGradientFreeWhichAnotherOneIsAddedTo) {
  Builder builder;
  const ValueId x = builder.argument(), y = builder.argument();
  const ValueId gradient = builder.relu(x), sum = builder.add_(gradient, builder.relu(y));
  const Program program = builder.finish({builder.relu(sum)});

  EXPECT_FALSE(is_fixed(program, gradient));
  const Aliases aliases(program);
  EXPECT_TRUE(adds_in_any_order(program, aliases, fixed_orders(program, aliases), 2));
  EXPECT_FALSE(adds_in_any_order(program, aliases, fixed_orders(program, aliases), 0));
}

TEST(MemoryOrders, FixesThatOfAnInputThatIsWrittenTo) {
  Builder builder;
  const ValueId x = builder.argument(), y = builder.argument(), sum = builder.add_(x, y);
  const Program program = builder.finish({sum});

  EXPECT_TRUE(is_fixed(program, x));
  EXPECT_FALSE(is_fixed(program, y));
}

TEST(MemoryOrders, FixesThatOfWhatIsWrittenToThroughAView) {
  Builder builder;
  const ValueId x = builder.argument(), y = builder.argument(), made = builder.relu(x);
  builder.add_(builder.op("aten::t", {ref(made)}), y);
  const Program program = builder.finish({made});

  EXPECT_TRUE(is_fixed(program, made));
}

TEST(MemoryOrders, FixesThatOfWhatIsWrittenToOtherwise) {
  Builder builder;
  const ValueId x = builder.argument(), made = builder.relu(x);
  builder.op("aten::mul_.Scalar", {ref(made), integer(2)});
  const Program program = builder.finish({made});

  EXPECT_TRUE(is_fixed(program, made));
}

TEST(MemoryOrders, FixesThatOfWhatIsAddedToItself) {
  Builder builder;
  const ValueId x = builder.argument(), made = builder.relu(x);
  builder.add_(made, made);
  const Program program = builder.finish({made});

  EXPECT_TRUE(is_fixed(program, made));
}

TEST(MemoryOrders, KnowsWhatIsOnlyConvolved) {
  Builder builder;
  const ValueId x = builder.argument(), w = builder.argument(), v = builder.argument();
  auto convolved = [&](ValueId image, ValueId weights) {
    const Argument one = testing_support::integers({1, 1}), none = testing_support::integers({0, 0});
    return builder.op("aten::convolution", {ref(image), ref(weights), {}, one, none, one, {false}, none, integer(1)});
  };
  const ValueId y = convolved(x, w), z = convolved(y, v);
  const Program program = builder.finish({builder.relu(z), v});

  const std::vector<bool> only = only_convolved(program);

  EXPECT_TRUE(only[x] && only[w] && only[y]);
  EXPECT_FALSE(only[v]) << "it comes out, too";
  EXPECT_FALSE(only[z]);
}

}  // namespace muster::memory_orders_test
