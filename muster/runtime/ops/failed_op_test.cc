#include "muster/runtime/ops/failed_op.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/graph/test_program.h"

namespace muster::failed_op_test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing_support::Builder;
using testing_support::integer;
using testing_support::ref;
using testing_support::refs;

TEST(FailedOp, IsAboutTheVariablesThatItIsGivenOrThatItsResultsAreFor) {
  Builder builder;
  const ValueId x = builder.argument(), w = builder.variable("job//w"), b = builder.variable("b");
  builder.add(builder.relu(x), w);
  builder.add(b, x);
  builder.relu(builder.relu(x));
  const Program program = builder.finish({});

  EXPECT_THAT(variables_about(program, program.instructions[0]), ElementsAre("w"));
  EXPECT_THAT(variables_about(program, program.instructions[1]), ElementsAre("w"));
  EXPECT_THAT(variables_about(program, program.instructions[2]), ElementsAre("b"));
  EXPECT_THAT(variables_about(program, program.instructions[3]), IsEmpty());
}

TEST(FailedOp, IsAboutTheTableThatItsIdsAreForAndNotWhatAnOptimizerChangesByThem) {
  Builder builder;
  const ValueId ids = builder.relu(builder.argument()), step = builder.relu(ids);
  const ValueId table = builder.variable("users"), mean = builder.variable("users/adam/mean");
  builder.add(table, ids);
  builder.add_(table, ids);
  builder.add_(mean, ids);
  builder.add_(mean, step);
  const Program program = builder.finish({});

  EXPECT_THAT(variables_about(program, program.instructions[0]), ElementsAre("users"));
  EXPECT_THAT(variables_about(program, program.instructions[1]), ElementsAre("users/adam/mean")) << "nobody reads it";
}

TEST(FailedOp, NamesSomeOfManyVariables) {
  Builder builder;
  const ValueId ids = builder.relu(builder.argument());
  for (const char* name : {"t/part_0", "t/part_1", "t/part_2", "t/part_3", "t/part_4", "t/part_5"}) {
    builder.add(builder.variable(name), ids);
  }
  const Program program = builder.finish({});
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::relu", "");
  const Status refused(StatusCode::kOutOfRange, "id 7 of a table with 6 rows");

  EXPECT_EQ(explained(refused, program, program.instructions[0], op, {torch::ones({2})}).message(),
            "variables \"t/part_0\", \"t/part_1\", \"t/part_2\", \"t/part_3\" and 2 more: id 7 of a table with 6 rows");
}

TEST(FailedOp, IsAboutVariablesOfOtherTasks) {
  Builder part("part");
  const ValueId other = part.argument(), ids = part.argument();
  part.add(part.variable("unused"), other);
  part.add(part.variable("table"), ids);
  Builder builder;
  const ValueId x = builder.argument(), made = builder.relu(x);
  builder.program.instructions.push_back(
      {.op = builder.program.intern_op(kRemote.name, kRemote.schema), .arguments = {integer(0), refs({x, made})}});
  Program program = builder.finish({});
  program.parts = {part.finish({})};

  EXPECT_THAT(variables_about(program, program.instructions[0]), ElementsAre("table"));
}

TEST(FailedOp, NamesTheOperandThatDoesNotFit) {
  Builder builder;
  const ValueId table = builder.variable("words");
  builder.program.instructions.push_back(
      {.op = builder.program.intern_op("aten::embedding", ""), .arguments = {ref(table), ref(builder.argument())}});
  const Program program = builder.finish({});
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::embedding", "");
  const at::Tensor weight = torch::zeros({4, 2});
  auto explanation = [&](StatusCode code, const at::Tensor& indices) {
    return explained(Status(code, "index out of range in self"), program, program.instructions[0], op,
                     {weight, indices, -1, false, false});
  };

  const Status far = explanation(StatusCode::kInvalidArgument, torch::tensor({1, 7}));
  EXPECT_EQ(
      far.message(),
      "variable \"words\": index out of range in self; indices has 7, expected at least 0 and below 4 (weight[0])");
  EXPECT_EQ(op_with_unfit_operand(far), "aten::embedding");
  const Status near = explanation(StatusCode::kInvalidArgument, torch::tensor({1}));
  EXPECT_EQ(near.message(), "index out of range in self; of variable \"words\"");
  EXPECT_EQ(op_with_unfit_operand(near), std::nullopt);
  EXPECT_EQ(explanation(StatusCode::kUnavailable, torch::tensor({7})).message(), "index out of range in self");
}

}  // namespace
}  // namespace muster::failed_op_test
