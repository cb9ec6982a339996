#include "muster/graph/resized.h"

#include <gtest/gtest.h>

#include <limits>

#include "muster/graph/checker.h"
#include "muster/graph/serialize.h"

namespace muster::resized_test {
namespace {

// Brings a batch of [n, 2, 3] to [2 n, 3] and adds a constant.
SizedProgram flattened(int64_t batch, const std::string& constant = std::string(12, 'c')) {
  Program program{.name = "flatten", .num_values = 4};
  program.arguments = {{.value = 0, .spec = {DType::kFloat, {batch, 2, 3}}}};
  program.constants = {{.value = 1, .spec = {DType::kFloat, {3}}, .bytes = std::make_shared<std::string>(constant)}};
  const int32_t reshape =
      program.intern_op("aten::reshape", "aten::reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)");
  const int32_t mul = program.intern_op("aten::mul.Tensor", "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor");
  const ArgumentList shape{Argument{2 * batch}, Argument{int64_t{3}}};
  program.instructions = {{.op = reshape, .arguments = {Argument{ValueRef{0}}, Argument{shape}}, .results = {{2}}},
                          {.op = mul, .arguments = {Argument{ValueRef{2}}, Argument{ValueRef{1}}}, .results = {{3}}}};
  program.outputs = {3};
  check(program);
  return {batch, std::move(program)};
}

TEST(Resized, IsTheProgramThatATraceOfThatSizeGives) {
  for (const int64_t size : {1, 2, 3, 64, 1'000'000}) {
    const auto program = resized(flattened(2), flattened(3), size);

    ASSERT_TRUE(program) << size;
    EXPECT_EQ(serialize(*program), serialize(flattened(size).program)) << size;
  }
}

TEST(Resized, GoesThroughBodies) {
  auto with_body = [](int64_t batch) {
    SizedProgram sized{batch, {.name = "outer"}};
    sized.program.bodies = {flattened(batch).program};
    return sized;
  };

  const auto program = resized(with_body(2), with_body(3), 7);

  ASSERT_TRUE(program);
  EXPECT_EQ(serialize(*program), serialize(with_body(7).program));
}

TEST(Resized, IsNothingForProgramsThatDifferInMoreThanSizes) {
  SizedProgram longer = flattened(3), renamed = flattened(3), other_op = flattened(3), uneven = flattened(4);
  longer.program.instructions.pop_back();
  renamed.program.name = "other";
  std::swap(other_op.program.ops[0], other_op.program.ops[1]);
  uneven.program.arguments[0].spec.sizes[1] = 3;  // one more for two more examples

  for (const SizedProgram& other : {longer, renamed, other_op, flattened(3, std::string(12, 'd'))}) {
    EXPECT_FALSE(resized(flattened(2), other, 5));
  }
  EXPECT_FALSE(resized(flattened(2), uneven, 3));
  EXPECT_TRUE(resized(flattened(2), uneven, 6));
  EXPECT_FALSE(resized(flattened(2), flattened(2), 3));
}

TEST(Resized, IsNothingForSizesThatNoTensorHas) {
  const SizedProgram small = flattened(2), large = flattened(3);

  for (const int64_t size : {int64_t{-1}, int64_t{1} << 62, std::numeric_limits<int64_t>::max()}) {
    EXPECT_FALSE(resized(small, large, size)) << size;
  }
}

}  // namespace
}  // namespace muster::resized_test
