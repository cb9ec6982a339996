#include "muster/graph/checker.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "muster/base/status.h"
#include "muster/graph/test_program.h"

namespace muster {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;

std::string complaint(const Program& program, StatusCode code = StatusCode::kInvalidArgument,
                      const Limits& limits = {}) {
  try {
    check(program, limits);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.status().message();
  }
  return "";
}

TEST(Checker, PassesWhatTheTracerMakes) {
  EXPECT_EQ(complaint(small_program()), "");
  EXPECT_EQ(complaint(loop_program()), "");
  EXPECT_EQ(complaint(Program{}), "");
}

TEST(Checker, NamesTheInstructionThatUsesAValueTooEarly) {
  Builder b;
  ValueId x = b.argument();
  b.relu(x);
  b.op("aten::mm", {ref(x), ref(40)});

  EXPECT_EQ(
      complaint(b.program),
      "program \"step\": instruction 1 (aten::mm): argument 1 refers to value 40, which is not defined before it");
}

TEST(Checker, RefusesASecondDefinition) {
  Builder b;
  ValueId x = b.argument();
  b.relu(x);
  b.program.instructions[0].results[0][0] = x;

  EXPECT_THAT(complaint(b.program), HasSubstr("instruction 0 (aten::relu): value 0 is defined twice"));
}

TEST(Checker, RefusesNumbersOutOfRange) {
  for (int32_t bad : {-1, 1000, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    auto broken = [&](auto change) {
      Program program = small_program();
      change(program);
      return complaint(program);
    };
    EXPECT_THAT(broken([&](Program& p) { p.instructions[1].op = bad; }), HasSubstr("instruction 1: op number"));
    EXPECT_THAT(broken([&](Program& p) { p.instructions[1].device = bad; }), HasSubstr("(aten::mm): device number"));
    EXPECT_THAT(broken([&](Program& p) { p.variables[0].device = bad; }), HasSubstr("variable 0: device number"));
    EXPECT_THAT(broken([&](Program& p) { p.arguments[0].device = bad; }), HasSubstr("argument 0: device number"));
    EXPECT_THAT(broken([&](Program& p) { p.constants[0].value = bad; }), HasSubstr("constant 0: defines value"));
    EXPECT_THAT(broken([&](Program& p) { p.outputs[0] = bad; }), HasSubstr("outputs: value"));
    EXPECT_THAT(broken([&](Program& p) { p.instructions[0].bodies = {bad}; }), HasSubstr("is not control flow"));
  }
  Program loop = loop_program();
  loop.instructions[0].bodies[0] = 1;
  EXPECT_THAT(complaint(loop), HasSubstr("body number 1, but there are 1"));
}

TEST(Checker, RefusesDevicesThatAreNone) {
  Builder b;
  b.relu(b.argument(), "/job:ps/bar:1");
  EXPECT_THAT(complaint(b.program), HasSubstr("unknown attribute \"bar\""));

  Program program;
  program.devices = {};
  EXPECT_THAT(complaint(program), HasSubstr("device 0 is not \"\""));
}

TEST(Checker, RefusesConstantsWhoseBytesDoNotFit) {
  Builder b;
  b.constant(1.0, false);
  b.program.constants[0].spec.sizes = {2};
  EXPECT_EQ(complaint(b.program), "program \"step\": constant 0: it has 8 bytes, but float64[2] needs 16");

  b.program.constants[0].spec.sizes = {-1};
  EXPECT_THAT(complaint(b.program), HasSubstr("size -1 is negative"));
  b.program.constants[0].spec.sizes = {int64_t{1} << 32, int64_t{1} << 32, 0};
  EXPECT_THAT(complaint(b.program), HasSubstr("needs 0"));
  b.program.constants[0].spec.sizes = {int64_t{1} << 32, int64_t{1} << 32};
  EXPECT_THAT(complaint(b.program, StatusCode::kResourceExhausted), HasSubstr("over the limit"));
  b.program.constants[0].bytes = nullptr;
  b.program.constants[0].spec.sizes = {0};
  EXPECT_THAT(complaint(b.program), HasSubstr("it has 0 bytes"));
}

TEST(Checker, HoldsArgumentsToTheirSchema) {
  auto with = [](const std::string& op, std::vector<Argument> arguments, std::vector<size_t> results = {1}) {
    Builder b;
    b.argument();
    b.instruction(op, std::move(arguments), std::move(results));
    return complaint(b.program);
  };

  EXPECT_EQ(with("aten::index.Tensor", {ref(0), {ArgumentList{{None{}}, ref(0)}}}), "");
  EXPECT_EQ(with("aten::mul.Scalar", {ref(0), {std::complex<double>(1, 2)}}), "");
  EXPECT_EQ(with("aten::mul.Scalar", {{Undefined{}}, {true}}), "");
  EXPECT_EQ(with("aten::bernoulli_.float", {ref(0), number(0.5), {HereGenerator{}}}), "");
  EXPECT_EQ(with("aten::zeros", {integers({2}), integer(6), integer(0), {HereDevice{}}, {None{}}}), "");
  EXPECT_THAT(with("aten::mm", {ref(0)}), HasSubstr("has 1 arguments, but its schema has 2"));
  EXPECT_THAT(with("aten::mm", {ref(0), {None{}}}), HasSubstr("argument 1 (mat2) is None, not Tensor"));
  EXPECT_THAT(with("aten::mm", {ref(0), integer(1)}), HasSubstr("argument 1 (mat2) is an integer, not Tensor"));
  EXPECT_THAT(with("aten::mm", {ref(0), refs({0})}), HasSubstr("is a list, not Tensor"));
  EXPECT_THAT(with("aten::cat", {ref(0), integer(0)}), HasSubstr("is a tensor, not Tensor[]"));
  EXPECT_THAT(with("aten::cat", {{ArgumentList{{None{}}}}, integer(0)}), HasSubstr("element 0 is None"));
  EXPECT_THAT(with("aten::cat", {{ArgumentList{refs({0})}}, integer(0)}), HasSubstr("element 0 is a list"));
  EXPECT_THAT(with("aten::cat", {refs({0}), number(0)}), HasSubstr("is a number, not int"));
  EXPECT_THAT(with("aten::cat", {refs({7}), integer(0)}), HasSubstr("refers to value 7"));
  EXPECT_THAT(with("aten::reshape", {ref(0), {ArgumentList{number(1)}}}), HasSubstr("not of SymInt[]"));
  EXPECT_THAT(with("aten::bernoulli_.float", {ref(0), integer(1), {HereGenerator{}}}), HasSubstr("not float"));
  EXPECT_THAT(with("aten::relu", {ref(0)}, {2}), HasSubstr("result 0 is one tensor, but has 2 values"));
  EXPECT_THAT(with("aten::relu", {ref(0)}, {}), HasSubstr("has 0 results, but its schema has 1"));
}

TEST(Checker, RefusesNumbersThatStandForNothing) {
  auto zeros = [](int64_t dtype, int64_t layout) {
    Builder b;
    b.op("aten::zeros", {integers({2}), integer(dtype), integer(layout), {HereDevice{}}, {None{}}});
    return complaint(b.program);
  };
  auto empty = [](int64_t format) {
    Builder b;
    b.op("aten::empty.memory_format", {integers({2}), {None{}}, {None{}}, {HereDevice{}}, {None{}}, integer(format)});
    return complaint(b.program);
  };

  EXPECT_EQ(zeros(6, 0), "");
  EXPECT_EQ(empty(0), "");
  for (int64_t bad : {int64_t{-1}, int64_t{99}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(zeros(bad, 0), HasSubstr("argument 1 (dtype)"));
    EXPECT_THAT(zeros(6, bad), HasSubstr("argument 2 (layout)"));
    EXPECT_THAT(empty(bad), HasSubstr("argument 5 (memory_format)"));
  }
}

TEST(Checker, RefusesAnUndefinedTensorWhereControlFlowNeedsOne) {
  const Argument undefined{Undefined{}};
  auto cond = [&](Argument predicate, Argument inputs) {
    Builder b;
    b.argument();
    for (int i = 0; i < 2; ++i) {
      Builder body("body");
      b.body(body.finish({body.argument()}));
    }
    b.instruction(kCond.name, {std::move(predicate), std::move(inputs)}, {1}, "", {0, 1});
    return complaint(b.program);
  };

  EXPECT_EQ(cond(ref(0), refs({0})), "");
  EXPECT_THAT(cond(undefined, refs({0})), HasSubstr("argument 0 (predicate) has an undefined tensor"));
  EXPECT_THAT(cond(ref(0), {ArgumentList{undefined}}), HasSubstr("argument 1 (inputs) has an undefined tensor"));
}

TEST(Checker, RefusesACopyIntoNoValue) {
  Builder b;
  ValueId x = b.argument();
  b.op(kCopy.name, {ref(x)});
  b.program.instructions[0].results[0][0] = kNoValue;

  EXPECT_THAT(complaint(b.program), HasSubstr("its result has no value"));
}

TEST(Checker, RefusesSchemasThatAreNoneOrAnotherOps) {
  Builder b;
  b.relu(b.argument());
  b.program.ops[0].schema = "aten::relu";
  EXPECT_THAT(complaint(b.program), HasSubstr("is not of the form"));
  b.program.ops[0].schema = "aten::gelu(Tensor self) -> Tensor";
  EXPECT_THAT(complaint(b.program), HasSubstr("\"aten::relu\" has the schema of \"aten::gelu\""));

  Program loop = loop_program();
  loop.ops[0].schema = "muster::loop(int? trips, Tensor[] state, Tensor[] inputs) -> Tensor[]";
  EXPECT_THAT(complaint(loop), HasSubstr("the schema of muster::loop is not ours"));
}

TEST(Checker, SaysInOneReadableLineThatANameIsGarbage) {
  Builder b("a\nb");
  b.relu(b.argument(), "/job:\x01");
  EXPECT_EQ(complaint(b.program),
            "program \"a\\x0ab\": device 1: the name \"/job:\\x01\" has a character that is not printable ASCII");
  b.program.devices[1] = "/job:ps";
  b.program.ops[0].name = "aten::\xff";
  EXPECT_THAT(complaint(b.program), HasSubstr("op 0: the name \"aten::\\xff\""));
}

TEST(Checker, RefusesAVariableThatIsThereTwice) {
  Builder b;
  b.variable("w");
  b.variable("w");

  EXPECT_THAT(complaint(b.program), HasSubstr("variable 1: \"w\" is there twice"));
}

TEST(Checker, HoldsBodiesToTheirInstruction) {
  auto broken = [](auto change) {
    Program program = loop_program();
    change(program);
    return complaint(program);
  };

  EXPECT_THAT(broken([](Program& p) { p.instructions[0].bodies.clear(); }), HasSubstr("has 0 bodies, but needs 1"));
  EXPECT_THAT(broken([](Program& p) { p.instructions[0].arguments[0] = {None{}}; }), HasSubstr("but needs 2"));
  EXPECT_THAT(broken([](Program& p) { p.instructions[0].arguments[0] = integer(-1); }), HasSubstr("trips is negative"));
  EXPECT_THAT(broken([](Program& p) { p.instructions[0].arguments[2] = refs({}); }),
              HasSubstr("body 0 has 4 arguments, but is given 2"));
  EXPECT_THAT(broken([](Program& p) { p.bodies[0].outputs.clear(); }), HasSubstr("body 0 has 0 outputs, but 1"));
  EXPECT_THAT(broken([](Program& p) { p.instructions[0].results[1].clear(); }), HasSubstr("result 1 has 0 values"));
  EXPECT_THAT(broken([](Program& p) { p.bodies[0].outputs = {kNoValue}; }), HasSubstr("value -1 is not defined"));
  EXPECT_THAT(broken([](Program& p) { p.bodies[0].instructions[0].arguments[0] = ref(9); }),
              HasSubstr("program \"train\", body 0: instruction 0 (aten::add_.Tensor): argument 0 refers to value 9"));
  EXPECT_THAT(broken([](Program& p) { p.bodies[0].variables.push_back({p.bodies[0].new_value(), "w", {}, 0}); }),
              HasSubstr("a body has variables"));
}

TEST(Checker, LetsOnlyTheBodyOfAGradientLeaveOutOutputs) {
  Builder inside("gradient");
  for (int i = 0; i < 4; ++i) inside.argument();  // index, state, gradient, input
  Program body = inside.finish({2, kNoValue});
  Builder b;
  ValueId trips = b.argument({DType::kLong, {}}), saved = b.argument(), gradient = b.argument(), input = b.argument();
  int32_t index = b.body(body);
  b.instruction(kLoopGradient.name, {ref(trips), refs({saved}), refs({gradient}), refs({input})}, {1, 1}, "", {index});

  EXPECT_EQ(complaint(b.program), "");
  b.program.instructions[0].arguments[1] = refs({});
  EXPECT_THAT(complaint(b.program), HasSubstr("has 0 saved tensors and 1 gradients"));
}

TEST(Checker, StopsAtItsLimits) {
  const StatusCode over = StatusCode::kResourceExhausted;
  Program program = small_program();

  EXPECT_THAT(complaint(program, over, {.instructions = 3}),
              HasSubstr("number of instructions 8 is over the limit of 3"));
  EXPECT_THAT(complaint(program, over, {.values = 3}), HasSubstr("number of values"));
  EXPECT_THAT(complaint(program, over, {.constant_bytes = 7}), HasSubstr("over the limit of 7"));
  EXPECT_THAT(complaint(program, over, {.name_length = 3}), HasSubstr("length of the name"));
  EXPECT_THAT(complaint(program, over, {.dims = 1}), HasSubstr("number of dimensions 2"));
  EXPECT_THAT(complaint(loop_program(), over, {.instructions = 2}), HasSubstr("body 0: number of instructions 3"));
  EXPECT_THAT(complaint(loop_program(), over, {.list_length = 1}), HasSubstr("length of argument 2"));

  program.num_values = std::numeric_limits<int32_t>::max();
  EXPECT_THAT(complaint(program, over), HasSubstr("number of values"));
}

TEST(Checker, StopsBeforeBodiesAreNestedTooDeep) {
  Program program;
  for (int i = 0; i < 100; ++i) {
    Program outer;
    outer.bodies.push_back(std::move(program));
    program = std::move(outer);
  }

  EXPECT_THAT(complaint(program, StatusCode::kResourceExhausted), HasSubstr("nested deeper than 16"));
}

}  // namespace
}  // namespace muster
