#include "muster/graph/dump.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/log.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/test_program.h"

namespace muster {
namespace {

using namespace testing_support;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Dump, ShowsAProgramLineByLine) {
  EXPECT_EQ(dump(small_program()),
            "program \"step\" (1 arguments, 2 variables, 1 constants, 8 instructions)\n"
            "  %0 = argument float32[2, 2]\n"
            "  %1 = variable \"w\" float32[2, 2]  @ /job:ps/task:0/device:CPU:0\n"
            "  %2 = variable \"b\" float32[2, 2]\n"
            "  %3 = constant number 0.1 (float64)\n"
            "  %4 = aten::t(%1)\n"
            "  %5 = aten::mm(%0, %4)  @ /device:GPU:0\n"
            "  %6 = aten::add.Tensor(%5, %2, alpha=1)\n"
            "  %7 = aten::relu(%6)\n"
            "  %8 = aten::mul.Tensor(%7, %3)\n"
            "  %9 = aten::sub_.Tensor(%1, %8, alpha=1)\n"
            "  %10 = aten::mul.Tensor(%5, %3)\n"
            "  %11 = aten::sub_.Tensor(%2, %10, alpha=1)\n"
            "  return %7\n");
}

TEST(Dump, IndentsBodies) {
  EXPECT_EQ(dump(loop_program()),
            "program \"train\" (2 arguments, 1 variables, 0 constants, 1 instructions)\n"
            "  %0 = argument float32[2, 2]\n"
            "  %1 = argument float32[2, 2]\n"
            "  %2 = variable \"counter\" float32[2, 2]\n"
            "  %3, %4, %5 = muster::loop(trips=3, state=[%0], inputs=[%1, %2])\n"
            "    program \"body\" (4 arguments, 0 variables, 0 constants, 2 instructions)\n"
            "      %0 = argument int64[]\n"
            "      %1 = argument float32[2, 2]\n"
            "      %2 = argument float32[2, 2]\n"
            "      %3 = argument float32[2, 2]\n"
            "      %4 = aten::add_.Tensor(%3, %2, alpha=1)\n"
            "      %5 = aten::add.Tensor(%1, %2, alpha=1)\n"
            "      return %5\n"
            "  return %3\n");
}

TEST(Dump, ShowsEveryKindOfArgument) {
  Builder b;
  ValueId x = b.argument();
  b.op("aten::index.Tensor", {ref(x), {ArgumentList{{None{}}, {Undefined{}}, ref(x)}}});
  b.op("aten::mul.Scalar", {ref(x), {std::complex<double>(1, -2)}});
  b.op("aten::mul.Scalar", {ref(x), number(1)});
  b.op("aten::bernoulli_.float", {ref(x), number(0.3), {HereGenerator{}}});
  b.op("aten::zeros", {integers({2, 3}), {None{}}, {None{}}, {HereDevice{}}, {true}});
  std::string text = dump(b.program);

  EXPECT_THAT(text, HasSubstr("aten::index.Tensor(%0, indices=[None, undefined, %0])"));
  EXPECT_THAT(text, HasSubstr("other=(1, -2j)"));
  EXPECT_THAT(text, HasSubstr("aten::mul.Scalar(%0, other=1.0)"));
  EXPECT_THAT(text, HasSubstr("(%0, p=0.3, generator=random)"));
  EXPECT_THAT(text, HasSubstr("(size=[2, 3], dtype=None, layout=None, device=here, pin_memory=true)"));
  EXPECT_THAT(text, HasSubstr("return nothing"));
}

TEST(Dump, ShowsWhatTasksDoTogether) {
  Builder b;
  const ValueId first = b.argument(), second = b.argument();
  b.instruction(kCollective.name,
                {refs({first, second}), integer(3), integer(0), integer(2), integer(0), {std::string("gradients")}},
                {2});

  EXPECT_THAT(dump(b.program),
              HasSubstr("  [%2, %3] = muster::collective(values=[%0, %1], group=3, kind=0, reduction=2, root=0, "
                        "purpose=\"gradients\")\n"));
}

TEST(Dump, ShowsTheValuesOfSmallConstants) {
  Builder b;
  b.program.constants.push_back({b.program.new_value(),
                                 {DType::kInt, {2}},
                                 std::make_shared<std::string>(std::string("\1\0\0\0\2\0\0\0", 8)),
                                 false});
  b.program.constants.push_back(
      {b.program.new_value(), {DType::kByte, {1000}}, std::make_shared<std::string>(1000, 'x'), false});

  EXPECT_THAT(dump(b.program), HasSubstr("constant int32[2] = {1, 2}\n"));
  EXPECT_THAT(dump(b.program), HasSubstr("constant uint8[1000]\n"));
}

TEST(Dump, KeepsStrangeNamesOnTheirLine) {
  Builder b(std::string("a\nb\"\0\xff", 6));

  EXPECT_THAT(dump(b.program), HasSubstr("program \"a\\x0ab\\\"\\x00\\xff\""));
}

TEST(Dot, DrawsDevicesAsClustersAndEachKindInItsShape) {
  LogCapture quiet;
  Program program = place(small_program(),
                          {.devices = {"/job:w/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:0/device:CPU:0"},
                           .default_device = "/job:w/replica:0/task:0/device:CPU:0"});
  std::string text = dot(program);

  EXPECT_THAT(text, HasSubstr("label=\"/job:ps/replica:0/task:0/device:CPU:0\""));
  EXPECT_THAT(text, HasSubstr("shape=cylinder"));
  EXPECT_THAT(text, HasSubstr("shape=note"));
  EXPECT_THAT(text, HasSubstr("shape=house"));
  EXPECT_THAT(text, HasSubstr("shape=cds"));
  EXPECT_THAT(text, HasSubstr("label=\"mm\""));
}

TEST(Dot, DrawsBodiesAndEscapesNames) {
  Program program = loop_program();
  program.variables[0].name = "a\"b\\c\n";
  std::string text = dot(program);

  EXPECT_THAT(text, HasSubstr("body 0 of muster::loop: body"));
  EXPECT_THAT(text, HasSubstr("a\\\"b\\\\c?"));
  EXPECT_THAT(text, Not(HasSubstr("c\n\"")));
}

}  // namespace
}  // namespace muster
