#include "muster/graph/end_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/graph/checker.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/placement/split.h"
#include "muster/graph/test_program.h"

namespace muster::end_calls_test {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr const char* kAtWorker = "/job:worker/replica:0/task:0/device:CPU:0";
constexpr const char* kAtPs = "/job:ps/replica:0/task:0/device:CPU:0";
constexpr const char* kAtOther = "/job:ps/replica:0/task:1/device:CPU:0";

Program step_of(Program program) {
  check(program);
  return split(place(std::move(program), {.devices = {kAtWorker, kAtPs, kAtOther}, .default_device = kAtWorker}),
               task_of_device(kAtWorker));
}

TEST(EndCalls, AreTheFirstReadAndTheLastWriteOfEachTask) {
  Builder b;
  const ValueId x = b.argument(), v = b.variable("v", kAtPs), w = b.variable("w", kAtOther);
  const ValueId y = b.add(b.add(x, v, kAtWorker), w, kAtWorker);
  b.add_(v, y);
  b.add_(w, y);

  const Program step = step_of(b.finish({y}));
  const EndCalls calls = end_calls(step);

  ASSERT_EQ(step.parts.size(), 4u);
  EXPECT_THAT(calls.openings, ElementsAre(0, 1));
  EXPECT_THAT(calls.closings, ElementsAre(2, 3));
}

TEST(EndCalls, AreNoneInTheMiddle) {
  Builder b;
  const ValueId x = b.argument(), v = b.variable("v", kAtPs);
  for (int i = 0; i < 3; ++i) b.add_(v, b.add(x, v, kAtWorker));

  const Program step = step_of(b.finish({}));
  const EndCalls calls = end_calls(step);

  ASSERT_EQ(step.parts.size(), 4u) << "a write and the next read are one part";
  EXPECT_THAT(calls.openings, ElementsAre(0));
  EXPECT_THAT(calls.closings, ElementsAre(3));
}

TEST(EndCalls, ThatNeedSomethingOfTheStepAreNoOpenings) {
  Builder b;
  const ValueId x = b.argument(), v = b.variable("v", kAtPs);
  const ValueId there = b.add(v, b.relu(x, kAtWorker), kAtPs);
  b.add_(v, b.relu(there, kAtWorker));

  const EndCalls calls = end_calls(step_of(b.finish({})));

  EXPECT_THAT(calls.openings, IsEmpty());
  EXPECT_THAT(calls.closings, ElementsAre(1));
}

TEST(EndCalls, ThatWriteNothingAreNoClosings) {
  Builder b;
  const ValueId v = b.variable("v", kAtPs);

  const EndCalls calls = end_calls(step_of(b.finish({b.relu(v, kAtWorker)})));

  EXPECT_THAT(calls.openings, ElementsAre(0));
  EXPECT_THAT(calls.closings, IsEmpty());
}

// Which trip is the last one is known to the loop alone.
TEST(EndCalls, OfTasksThatABodyUsesFirstAndLastAreNone) {
  Builder inside("body");
  inside.argument({DType::kLong, {}});
  const ValueId state = inside.argument(), used = inside.argument({DType::kFloat, {2, 2}}, kAtPs);
  const ValueId sum = inside.add(state, used, kAtWorker);
  inside.add_(used, sum, kAtPs);
  Builder b;
  const ValueId x = b.argument(), v = b.variable("v", kAtPs);
  const int32_t body = b.body(inside.finish({sum}));
  b.instruction(kLoop.name, {integer(3), refs({x}), refs({v})}, {1, 1, 1}, kAtWorker, {body});

  const Program step = step_of(b.finish({}));
  const EndCalls calls = end_calls(step);

  ASSERT_EQ(step.parts.size(), 2u);
  EXPECT_THAT(calls.openings, IsEmpty());
  EXPECT_THAT(calls.closings, IsEmpty());
}

}  // namespace
}  // namespace muster::end_calls_test
