#include "muster/graph/wire_forms.h"

#include <gtest/gtest.h>

#include "muster/graph/placement/split.h"
#include "muster/graph/serialize.h"
#include "muster/graph/test_program.h"

namespace muster::wire_forms_test {
namespace {

using namespace ::muster::testing_support;

constexpr WireForm kHalf{.type = WireType::kFloat16}, kSmall{.type = WireType::kBFloat16, .deflate = true},
    kDeflated{.deflate = true}, kPlain{};
const char* const kPs = "/job:ps/replica:0/task:0/device:CPU:0";
const char* const kWorker = "/job:worker/replica:0/task:0/device:CPU:0";

ValueId variable(Builder& build, const std::string& name, const WireForm& form, const std::string& device = "") {
  const ValueId value = build.variable(name, device);
  build.program.variables.back().wire = form;
  return value;
}

// A step of Adam on a value, its gradient, mean and variance, the count of steps and the rate.
ValueId adam_(Builder& build, const std::vector<ValueId>& operands) {
  std::vector<Argument> arguments;
  for (const ValueId operand : operands) arguments.push_back(ref(operand));
  for (const double constant : {0.9, 0.99, 1e-8, 0.0}) arguments.push_back(number(constant));
  arguments.push_back({false});
  return build.op("muster_step::adam_", std::move(arguments));
}

TEST(WireForms, AreThoseOfTheVariablesThatArgumentsAreWrittenTo) {
  Builder build;
  const ValueId g = build.argument(), h = build.argument(), other = build.argument();
  const ValueId w = variable(build, "w", kSmall), exact = build.variable("exact");
  build.add_(w, build.relu(g));
  build.add_(exact, h);
  build.relu(other);

  const WireForms forms = wire_forms(build.finish({}));

  EXPECT_EQ(forms.arguments, (std::vector<WireForm>{kSmall, kPlain, kPlain}));
}

TEST(WireForms, LeaveExactWhatIsAlsoWrittenToAVariableThatWantsItSo) {
  Builder build;
  const ValueId g = build.argument();
  build.add_(variable(build, "w", kSmall), g);
  build.add_(variable(build, "v", kDeflated), g);

  EXPECT_EQ(wire_forms(build.finish({})).arguments, std::vector<WireForm>{kDeflated});
}

TEST(WireForms, TakeNoNoticeOfANumberThatIsWrittenAlong) {
  Builder build;
  const ValueId g = build.argument(), rate = build.variable("rate");
  const ValueId w = variable(build, "w", kSmall), mean = variable(build, "mean", kSmall),
                squares = variable(build, "variance", kSmall), steps = variable(build, "steps", kDeflated);
  build.program.variables.back().spec = {DType::kDouble, {1}};
  adam_(build, {w, g, mean, squares, steps, rate});

  EXPECT_EQ(wire_forms(build.finish({})).arguments, std::vector<WireForm>{kSmall});
}

TEST(WireForms, GoThroughAStepOfRowsBesideWhichItsCountIsWritten) {
  Builder build;
  const TensorSpec number_spec{DType::kDouble, {1}};
  const ValueId g = build.argument(), rate = build.variable("rate");
  build.program.variables.back().spec = number_spec;
  const ValueId table = variable(build, "table", kSmall), steps = variable(build, "steps", kDeflated);
  build.program.variables.back().spec = number_spec;
  const ValueId rows = build.relu(table), mean = build.relu(table), squares = build.relu(table);
  build.add_(table, adam_(build, {rows, g, mean, squares, steps, rate}));

  EXPECT_EQ(wire_forms(build.finish({})).arguments, std::vector<WireForm>{kSmall});
}

TEST(WireForms, OfListsGoPlaceByPlace) {
  Builder build;
  const ValueId g = build.argument(), h = build.argument();
  const ValueId w = variable(build, "w", kSmall), v = build.variable("v"), u = variable(build, "u", kHalf);
  build.instruction("aten::_foreach_add_.List", {refs({w, v}), refs({g, h}), integer(1)}, {});

  EXPECT_EQ(wire_forms(build.finish({w, v, u})).arguments, (std::vector<WireForm>{kSmall, kPlain}));
}

TEST(WireForms, OfOutputsAreThoseOfTheVariablesThatTheyShow) {
  Builder build;
  const ValueId x = build.argument();
  const ValueId w = variable(build, "w", kSmall), v = build.variable("v"), u = variable(build, "u", kHalf);
  const ValueId snapshot = build.op(kCopy.name, {ref(w)}), both = build.add(u, w), read = build.add(w, x);

  const WireForms forms = wire_forms(build.finish({w, v, snapshot, both, read, kNoValue}));

  EXPECT_EQ(forms.outputs, (std::vector<WireForm>{kSmall, kPlain, kSmall, kPlain, kSmall, kPlain}));
  EXPECT_EQ(forms.arguments, std::vector<WireForm>{kDeflated}) << "what a variable is read by is not rounded";
}

TEST(WireForms, OfWhatPartsHandToEachOtherAreInTheirReceives) {
  const char* const other = "/job:ps/replica:0/task:1/device:CPU:0";
  for (const bool pulled : {true, false}) {
    Builder build;
    const ValueId w = variable(build, "w", pulled ? kSmall : kPlain, kPs), v = build.variable("v", other);
    if (!pulled) build.program.variables.back().wire = kHalf;
    build.add_(v, build.relu(w, kPs), other);

    const Program driver = split(build.finish({}), "/job:worker/replica:0/task:0");

    ASSERT_EQ(driver.parts.size(), 2u);
    const Instruction& receive = driver.parts[1].instructions.at(0);
    ASSERT_EQ(driver.parts[1].op_of(receive).name, kReceive.name);
    EXPECT_EQ(receive.arguments[2], integer((pulled ? kSmall : kHalf).number()));
  }
}

TEST(WireForms, AreNoneWhereNoVariableHasOne) {
  Builder build;
  const ValueId w = build.variable("w");
  build.add_(w, build.argument());

  EXPECT_TRUE(wire_forms(build.finish({w})).plain());
}

TEST(WireForms, GoWithTheirVariablesIntoThePartsOfAProgram) {
  Builder build;
  const ValueId x = build.argument({DType::kFloat, {2, 2}}, kWorker);
  const ValueId w = variable(build, "w", kSmall, kPs);
  build.add_(w, build.add(build.op(kCopy.name, {ref(w)}, kWorker), x, kWorker), kPs);
  const Program sent = parse_program(serialize(build.finish({})));

  const Program driver = split(sent, "/job:worker/replica:0/task:0");

  ASSERT_EQ(driver.parts.size(), 2u);
  EXPECT_EQ(wire_forms(driver.parts[0]).outputs, std::vector<WireForm>{kSmall}) << "what is pulled";
  EXPECT_EQ(wire_forms(driver.parts[1]).arguments, std::vector<WireForm>{kSmall}) << "what is pushed";
}

TEST(WireForm, IsItselfAgainByItsNumber) {
  for (uint32_t number = 0; number < 32; ++number) {
    const auto form = WireForm::from_number(number);
    EXPECT_EQ(form.has_value(), number < 16 && number % 4 != 3) << number;
    EXPECT_EQ(form.value_or(WireForm{}).number(), form ? number : 0);
  }
}

}  // namespace
}  // namespace muster::wire_forms_test
