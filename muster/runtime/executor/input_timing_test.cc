#include "muster/runtime/executor/input_timing.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

// Read and shuffled by one thread, then changed by two.
InputTiming changed_by_two(double read, double shuffled, double changed) {
  return {.seconds = 10,
          .waited = 4,
          .elements = 100,
          .stages = {{.name = "map \"augment\"", .lane = 1, .threads = 2, .seconds = changed, .elements = 100},
                     {.name = "shuffle", .lane = 2, .seconds = shuffled, .elements = 100},
                     {.name = "read", .lane = 2, .seconds = read, .elements = 100}}};
}

TEST(InputTiming, NamesTheLongestStageOfTheBusiestLane) {
  EXPECT_EQ(InputTiming{}.bottleneck(), nullptr);
  EXPECT_EQ(changed_by_two(1, 1, 8).bottleneck()->name, "map \"augment\"");
  EXPECT_EQ(changed_by_two(4, 3, 8).bottleneck()->name, "read") << "8 s of two threads are less than 7 s of one";
  EXPECT_EQ(changed_by_two(3, 4, 8).bottleneck()->name, "shuffle");
  EXPECT_DOUBLE_EQ(changed_by_two(3, 4, 8).bottleneck_share(), 4.0 / 7);
}

TEST(InputTiming, SaysHowLongWasWaitedForWhat) {
  EXPECT_EQ(
      changed_by_two(1, 3, 2).to_string(),
      "waited for data 4000.0 ms of 10000.0 ms, for 100 elements; shuffle limits it, with 75 % of the work there");
}

TEST(InputTiming, CountsWhatHasComeToItSince) {
  InputTiming later = changed_by_two(4, 3, 20);
  later.waited = 5;
  later.elements = 110;

  const InputTiming passed = later.since(changed_by_two(3, 3, 8));

  EXPECT_DOUBLE_EQ(passed.waited, 1);
  EXPECT_EQ(passed.elements, 10);
  EXPECT_DOUBLE_EQ(passed.stages[0].seconds, 12);
  EXPECT_DOUBLE_EQ(passed.stages[1].seconds, 0);
  EXPECT_DOUBLE_EQ(passed.stages[2].seconds, 1);
}

TEST(InputTiming, AddsTheSameStagesOfSeveralWaits) {
  InputTiming sum = changed_by_two(1, 2, 3);
  sum.add(changed_by_two(10, 20, 30));
  sum.add({.stages = {{.name = "decode_images", .lane = 1, .seconds = 7}}});

  EXPECT_EQ(sum.elements, 200);
  ASSERT_EQ(sum.stages.size(), 4);
  EXPECT_DOUBLE_EQ(sum.stages[0].seconds, 33);
  EXPECT_DOUBLE_EQ(sum.stages[2].seconds, 11);
  EXPECT_DOUBLE_EQ(sum.stages[3].seconds, 7);
}

}  // namespace
}  // namespace muster
