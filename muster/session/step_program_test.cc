#include "muster/session/step_program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/graph/checker.h"
#include "muster/runtime/executor/step_ops.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/function.h"
#include "muster/trace/variable.h"

namespace muster {
namespace {

constexpr const char* kWorker = "/job:worker/replica:0/task:0";
const PlacerOptions kDevices{
    .devices = {"/job:worker/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:0/device:CPU:0"},
    .default_device = "/job:worker/replica:0/task:0/device:CPU:0"};

size_t calls_in(const Program& program) {
  size_t calls = 0;
  for (const Instruction& instruction : program.instructions) {
    calls += program.op_of(instruction).name == kRemote.name ? 1 : 0;
  }
  return calls;
}

TEST(StepProgram, ReadsTheVariablesOfATaskOnceAndWritesThemOnce) {
  Variable a(torch::ones({2}), {.device = "/job:ps/task:0"}), b(torch::ones({2}), {.device = "/job:ps/task:0"});
  auto step = function([&](const at::Tensor& x) {
    at::Tensor sum = a.value() * x + b.value();
    a.assign_sub(sum);
    b.assign_sub(sum);
  });

  const Program program = make_step(step.program(torch::ones({2})), "", kDevices, kWorker);

  EXPECT_EQ(program.parts.size(), 2U);
  EXPECT_EQ(calls_in(program), 2U);
}

TEST(StepProgram, DoesWhatWaitsForAValueInThePartThatIsGivenIt) {
  for (const bool waits : {false, true}) {
    SCOPED_TRACE(waits);
    Variable w(torch::ones({2}), {.device = "/job:ps/task:0"}), steps(torch::ones({1}), {.device = "/job:ps/task:0"});
    auto step = function([&](const at::Tensor& x) {
      c10::AutoGradMode no_gradients(false);
      const at::Tensor product = x * w.value();
      DeviceScope there("/job:ps/task:0");
      if (waits) step_ops::wait_for_({w.memory(), steps.memory()}, product);
      steps.memory().add_(1);
      w.memory().mul_(0.5).add_(product);
    });

    const Program program = make_step(step.program(torch::ones({2})), "", kDevices, kWorker);

    ASSERT_EQ(program.parts.size(), 2U);
    EXPECT_EQ(program.parts[0].variables.size(), waits ? 1U : 2U);
    EXPECT_EQ(program.parts[0].instructions.size(), waits ? 2U : 4U) << "copies of the weight";
    EXPECT_EQ(program.parts[1].instructions.size(), waits ? 3U : 1U);
  }
}

TEST(StepProgram, LetsALoopCarryTheNextReadInTheWriteOfEachTrip) {
  Variable w(torch::ones({2}), {.device = "/job:ps/task:0"});
  auto steps =
      function([&](const at::Tensor& x) { repeat(10, [&](const at::Tensor&) { w.assign_sub(0.1 * x * w.value()); }); });

  const Program program = make_step(steps.program(torch::ones({2})), "", kDevices, kWorker);

  check(program);
  ASSERT_EQ(program.bodies.size(), 1U);
  EXPECT_EQ(calls_in(program), 1U);            // the first read
  EXPECT_EQ(calls_in(program.bodies[0]), 1U);  // a write, with the read of the next trip
}

TEST(StepProgram, TakesNoOpWithAnotherSchemaThanLibtorchs) {
  Program program{.num_values = 1};
  program.arguments = {{.value = 0, .spec = {DType::kFloat, {2, 2}}}};
  program.ops = {{"aten::t", "aten::t(Tensor(a) self) -> ()"}};
  program.instructions = {{.op = 0, .arguments = {{ValueRef{0}}}}};

  try {
    make_step(program, "", kDevices, kWorker);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(error.status().message(), ::testing::HasSubstr("op aten::t was recorded as"));
  }
}

}  // namespace
}  // namespace muster
