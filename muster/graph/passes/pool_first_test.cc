#include <gtest/gtest.h>

#include "muster/graph/checker.h"
#include "muster/graph/passes/passes.h"
#include "muster/graph/test_program.h"

namespace muster {
namespace {

using namespace testing_support;

const TensorSpec kImage{DType::kFloat, {1, 1, 4, 4}};

// x -> relu -> pooling, as a model does it.
struct Forward {
  explicit Forward(Builder& b, ValueId x) {
    rectified = b.relu(x);
    pool = b.instruction(
        "aten::max_pool2d_with_indices",
        {ref(rectified), integers({2, 2}), integers({2, 2}), integers({0, 0}), integers({1, 1}), {false}}, {1, 1});
    pooled = b.program.instructions[pool].results[0][0];
    indices = b.program.instructions[pool].results[1][0];
  }
  ValueId backward(Builder& b, ValueId gradient) const {
    ValueId spread = b.op("aten::max_pool2d_with_indices_backward", {ref(gradient),
                                                                     ref(rectified),
                                                                     integers({2, 2}),
                                                                     integers({2, 2}),
                                                                     integers({0, 0}),
                                                                     integers({1, 1}),
                                                                     {false},
                                                                     ref(indices)});
    return b.op("aten::threshold_backward", {ref(spread), ref(rectified), integer(0)});
  }
  ValueId rectified, pooled, indices;
  size_t pool;
};

std::vector<std::string> names(const Program& program) {
  std::vector<std::string> ops;
  for (const Instruction& instruction : program.instructions) ops.push_back(program.op_of(instruction).name);
  return ops;
}

TEST(PoolFirst, LetsReluAndItsGradientWorkOnThePooledImage) {
  Builder b;
  ValueId x = b.argument(kImage), gradient = b.argument({DType::kFloat, {1, 1, 2, 2}});
  Forward forward(b, x);
  ValueId dx = forward.backward(b, gradient);
  Program program = b.finish({forward.pooled, dx});

  EXPECT_EQ(pool_first(program), 1);

  check(program);
  EXPECT_EQ(names(program),
            (std::vector<std::string>{"aten::max_pool2d_with_indices", "aten::relu", "aten::threshold_backward",
                                      "aten::max_pool2d_with_indices_backward"}));
  EXPECT_EQ(program.instructions[0].arguments[0], ref(x));
  EXPECT_EQ(program.instructions[1].results[0][0], forward.pooled) << "readers of the result see the same value";
  EXPECT_EQ(program.instructions[2].arguments[0], ref(gradient));
  EXPECT_EQ(program.instructions[2].arguments[1], ref(forward.pooled));
  EXPECT_EQ(program.instructions[3].arguments[1], ref(x));
  EXPECT_EQ(program.instructions[3].results[0][0], dx);
}

TEST(PoolFirst, LeavesARectifiedImageAloneThatSomebodyElseReads) {
  Builder b;
  Forward forward(b, b.argument(kImage));
  Program program = b.finish({forward.pooled, forward.rectified});

  EXPECT_EQ(pool_first(program), 0);
}

TEST(PoolFirst, LeavesPositionsAloneThatSomebodyReads) {
  Builder b;
  Forward forward(b, b.argument(kImage));
  Program program = b.finish({forward.pooled, forward.indices});

  EXPECT_EQ(pool_first(program), 0) << "of a window without positive elements, relu makes the first one the largest";
}

TEST(PoolFirst, LeavesAnImageAloneThatIsWritten) {
  Builder b;
  ValueId x = b.argument(kImage);
  Forward forward(b, x);
  b.add_(x, x);
  Program program = b.finish({forward.pooled});

  EXPECT_EQ(pool_first(program), 0);
}

}  // namespace
}  // namespace muster
