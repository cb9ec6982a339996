#include "muster/graph/serialize.h"

#include <gtest/gtest.h>

#include <cmath>

#include "muster/base/status.h"
#include "muster/graph/dump.h"
#include "muster/graph/test_program.h"

namespace muster {
namespace {

using namespace testing_support;

StatusCode code_of(std::string_view bytes) {
  try {
    parse_program(bytes);
  } catch (const Error& error) {
    return error.code();
  }
  return StatusCode::kOk;
}

TEST(Serialize, BringsBackTheProgram) {
  for (const Program& program : {small_program(), loop_program(), Program{}}) {
    Program back = parse_program(serialize(program));

    EXPECT_EQ(dump(back), dump(program));
    EXPECT_EQ(back.ops, program.ops);
    EXPECT_EQ(back.devices, program.devices);
    EXPECT_EQ(serialize(back), serialize(program));
  }
}

TEST(Serialize, BringsBackEveryKindOfArgument) {
  const std::vector<Argument> arguments{
      {None{}},
      {Undefined{}},
      ref(3),
      integer(-5),
      number(-0.0),
      {true},
      {std::complex<double>(1, 2)},
      {std::string("a\0b", 3)},
      {HereDevice{}},
      {HereGenerator{}},
      integers({-1, int64_t{1} << 60}),
      refs({0, 2}),
      {ArgumentList{}},
      {ArgumentList{number(1), {None{}}, integers({1})}},
  };
  Program program;
  program.instructions.push_back({.arguments = arguments, .results = {{1, kNoValue}, {}}, .bodies = {7}});

  const Instruction back = parse_program(serialize(program)).instructions[0];

  EXPECT_EQ(back.arguments, arguments);
  EXPECT_TRUE(std::signbit(std::get<double>(back.arguments[4].value)));
  EXPECT_EQ(back.results, program.instructions[0].results);
  EXPECT_EQ(back.bodies, program.instructions[0].bodies);
}

TEST(Serialize, BringsBackConstantsAndTheSeed) {
  Builder b;
  b.constant(0.25);
  b.program.seed = 0xfedcba9876543210;

  Program back = parse_program(serialize(b.program));

  EXPECT_EQ(back.seed, b.program.seed);
  EXPECT_EQ(*back.constants[0].bytes, *b.program.constants[0].bytes);
  EXPECT_EQ(back.constants[0].spec, b.program.constants[0].spec);
  EXPECT_TRUE(back.constants[0].is_number);
}

TEST(Serialize, SaysThatBytesAreNoProgram) {
  EXPECT_EQ(code_of("nonsense"), StatusCode::kDataLoss);
  EXPECT_EQ(code_of(serialize(small_program()).substr(0, 40)), StatusCode::kDataLoss);
}

TEST(Serialize, SaysThatAVersionIsNotOurs) {
  try {
    parse_program("");  // a valid message with version 0
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(error.status().message(), "program: format version 0, but this Muster reads version 1");
  }
}

}  // namespace
}  // namespace muster
