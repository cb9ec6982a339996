#include "muster/graph/placement/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/strings.h"
#include "muster/graph/checker.h"
#include "muster/graph/placement/placer.h"
#include "muster/graph/test_program.h"

namespace muster {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;

const std::string kWorker = "/job:worker/replica:0/task:0";
const std::string kPs0 = "/job:ps/replica:0/task:0";
const std::string kPs1 = "/job:ps/replica:0/task:1";
constexpr const char* kCpu = "/device:CPU:0";

Program split_at_worker(Program program) {
  check(program);
  Program placed = place(std::move(program),
                         {.devices = {kWorker + kCpu, kPs0 + kCpu, kPs1 + kCpu}, .default_device = kWorker + kCpu});
  Program made = split(std::move(placed), kWorker);
  check(made);
  return made;
}

std::vector<std::string> ops(const Program& program) {
  std::vector<std::string> names;
  for (const Instruction& instruction : program.instructions) names.push_back(program.op_of(instruction).name);
  return names;
}

std::vector<std::string> tasks(const Program& program) {
  std::vector<std::string> names;
  for (const Program& part : program.parts) names.push_back(part.task);
  return names;
}

bool all_on(const Program& program, const std::string& task) {
  for (const Instruction& instruction : program.instructions) {
    if (task_of_device(program.devices[instruction.device]) != task) return false;
  }
  return true;
}

TEST(Split, LeavesAProgramOfOneTaskAsItIs) {
  Builder b;
  ValueId x = b.argument();
  Program made = split_at_worker(b.finish({b.relu(x)}));

  EXPECT_THAT(ops(made), ElementsAre("aten::relu"));
  EXPECT_TRUE(made.parts.empty());
}

TEST(Split, ReadsAndWritesAllVariablesOfAServerInOnePartEach) {
  Builder b;
  ValueId x = b.argument();
  std::vector<ValueId> variables;
  for (int i = 0; i < 4; ++i)
    variables.push_back(b.variable(str_cat("v", i), i % 2 ? "/job:ps/task:1" : "/job:ps/task:0"));
  ValueId y = x;
  for (ValueId v : variables) y = b.add(y, v, "/job:worker");
  for (ValueId v : variables) b.add_(v, y);
  Program made = split_at_worker(b.finish({y}));

  EXPECT_THAT(tasks(made), ElementsAre(kPs0, kPs1, kPs0, kPs1));
  EXPECT_EQ(ops(made)[0], kRemote.name) << "reads begin before the first instruction";
  EXPECT_EQ(ops(made)[1], kRemote.name);
  EXPECT_EQ(made.parts[0].variables.size(), 2u);
  EXPECT_EQ(made.parts[0].outputs.size(), 2u);
  EXPECT_TRUE(made.parts[0].arguments.empty());
  EXPECT_EQ(made.parts[2].arguments.size(), 1u) << "y travels once for its two updates";
  EXPECT_TRUE(made.parts[2].outputs.empty());
  EXPECT_TRUE(made.variables.empty());
  for (const Program& part : made.parts) EXPECT_TRUE(all_on(part, part.task));
  EXPECT_TRUE(all_on(made, kWorker));
}

TEST(Split, BringsWhatComesFromATaskToTheDeviceThatUsesIt) {
  Builder b;
  ValueId v = b.variable("v", "/job:ps/task:0"), w = b.variable("w", "/job:ps/task:0");
  ValueId near = b.add(v, v, "/job:worker/device:CPU:0"), far = b.add(w, w, "/job:worker/device:GPU:0");
  const std::string gpu = kWorker + "/device:GPU:0";
  Program placed = place(b.finish({near, far}), {.devices = {kWorker + kCpu, gpu, kPs0 + kCpu}, .default_device = gpu});

  const Program made = split(std::move(placed), kWorker);

  check(made);
  std::map<ValueId, std::string> device;
  for (const Instruction& instruction : made.instructions) {
    if (made.op_of(instruction).name != kRemote.name && made.op_of(instruction).name != kCopy.name) {
      for (const Argument& argument : instruction.arguments) {
        for_each_value(argument, [&](ValueId id) { EXPECT_EQ(device[id], made.devices[instruction.device]) << id; });
      }
    }
    for (const auto& values : instruction.results) {
      for (ValueId value : values) device[value] = made.devices[instruction.device];
    }
  }
  EXPECT_THAT(tasks(made), ElementsAre(kPs0)) << "both come with one request";
}

TEST(Split, SendsBetweenTwoOtherTasksDirectly) {
  Builder b;
  ValueId v = b.variable("v", "/job:ps/task:0"), w = b.variable("w", "/job:ps/task:1");
  b.add_(w, b.relu(v, "/job:ps/task:0"));
  Program made = split_at_worker(b.finish({}));

  ASSERT_THAT(tasks(made), ElementsAre(kPs0, kPs1));
  EXPECT_EQ(ops(made.parts[0]).back(), kSend.name);
  EXPECT_EQ(ops(made.parts[1]).front(), kReceive.name);
  EXPECT_EQ(made.parts[1].instructions[0].arguments[1].value, Argument{kPs0}.value);
  EXPECT_TRUE(made.parts[0].outputs.empty()) << "nothing passes through the driver";
}

TEST(Split, BeginsANewPartOnlyForWhatDependsOnTheOneBefore) {
  Builder b;
  ValueId v = b.variable("v", "/job:ps/task:0"), w = b.variable("w", "/job:ps/task:0");
  ValueId there = b.relu(v, "/job:ps/task:0");
  ValueId here = b.relu(there, "/job:worker");
  ValueId independent = b.relu(w, "/job:ps/task:0");
  ValueId back = b.add(here, there, "/job:ps/task:0");
  Program made = split_at_worker(b.finish({back, independent}));

  ASSERT_THAT(tasks(made), ElementsAre(kPs0, kPs0));
  EXPECT_EQ(made.parts[0].outputs.size(), 2u);
  EXPECT_EQ(made.parts[1].outputs.size(), 1u);
  EXPECT_EQ(made.parts[1].arguments.size(), 1u) << "`there` has stayed at its task";
  EXPECT_THAT(ops(made.parts[1]), ElementsAre(kReceive.name, "aten::add.Tensor", kCopy.name));
}

TEST(Split, AsksOnceForWhatIsLookedUpOneByOne) {
  Builder b;
  ValueId sum = b.argument();
  for (int i = 0; i < 3; ++i) {
    ValueId table = b.variable(str_cat("table", i), "/job:ps/task:0");
    ValueId ids = b.relu(b.argument(), "/job:worker");
    ValueId rows = b.add(table, ids, "/job:ps/task:0");
    sum = b.add(sum, b.relu(rows, "/job:worker"), "/job:worker");
  }
  Program made = split_at_worker(b.finish({sum}));

  ASSERT_THAT(tasks(made), ElementsAre(kPs0));
  EXPECT_EQ(made.parts[0].arguments.size(), 3u);
  const std::vector<std::string> all = ops(made);
  EXPECT_EQ(std::count(all.begin(), std::find(all.begin(), all.end(), kRemote.name), "aten::relu"), 3)
      << "what needs no answer comes before the request";
}

TEST(Split, LeavesForLastWhatNobodyElseWaitsFor) {
  Builder b;
  ValueId v = b.variable("v", "/job:ps/task:0");
  ValueId seen = b.relu(v, "/job:worker");
  ValueId metric = b.add(seen, seen, "/job:worker");
  ValueId gradient = b.relu(seen, "/job:worker");
  b.add_(v, gradient);
  Program made = split_at_worker(b.finish({metric}));

  ASSERT_THAT(tasks(made), ElementsAre(kPs0, kPs0));
  const std::vector<std::string> all = ops(made);
  const auto push = std::find(std::find(all.begin(), all.end(), "aten::relu"), all.end(), kRemote.name);
  EXPECT_NE(std::find(push, all.end(), "aten::add.Tensor"), all.end())
      << "the metric is computed while the gradient is on its way";
}

TEST(Split, KeepsWhatIsReadBeforeItIsWrittenTo) {
  Builder b;
  ValueId v = b.variable("v", "/job:ps/task:0");
  ValueId seen = b.relu(v, "/job:worker");
  ValueId before = b.relu(seen, "/job:worker");
  b.add_(seen, seen);
  b.add_(v, seen);
  Program made = split_at_worker(b.finish({before}));

  const std::vector<std::string> all = ops(made);
  const auto write = std::find(all.begin(), all.end(), "aten::add_.Tensor");
  EXPECT_EQ(std::count(all.begin(), write, "aten::relu"), 2) << "both of the driver's, before its write";
}

TEST(Split, NeverReadsBeforeAWriteThatComesFirst) {
  Builder b;
  ValueId x = b.argument(), v = b.variable("v", "/job:ps/task:0"), w = b.variable("w", "/job:ps/task:0");
  ValueId seen = b.relu(v, "/job:worker");
  b.add_(w, seen);                               // after the first answer
  ValueId late = b.add(w, x, "/job:ps/task:0");  // needs nothing of the driver's, but w as it is then
  ValueId other = b.relu(b.relu(x, "/job:worker"), "/job:ps/task:0");
  Program made = split_at_worker(b.finish({late, other}));

  ASSERT_THAT(tasks(made), ElementsAre(kPs0, kPs0));
  EXPECT_THAT(ops(made.parts[1]), ElementsAre("aten::add_.Tensor", "aten::add.Tensor", kCopy.name));
}

TEST(Split, KeepsAValueWithATaskThatNeedsItAgain) {
  Builder b;
  ValueId x = b.argument(), v = b.variable("v", "/job:ps/task:0");
  b.add_(v, x);
  ValueId seen = b.relu(v, "/job:worker");
  b.add_(v, seen);
  b.add_(v, x);
  Program made = split_at_worker(b.finish({}));

  ASSERT_THAT(tasks(made), ElementsAre(kPs0, kPs0));
  EXPECT_EQ(made.parts[0].arguments.size(), 1u);
  EXPECT_EQ(made.parts[1].arguments.size(), 1u) << "x is there already";
}

TEST(Split, WritesThroughAViewToTheVariableItself) {
  Builder b;
  ValueId v = b.variable("v", "/job:ps/task:0");
  ValueId view = b.op("aten::t", {ref(v)});
  ValueId seen = b.relu(v, "/job:worker");
  b.add_(view, seen);
  Program made = split_at_worker(b.finish({}));

  ASSERT_THAT(tasks(made), ElementsAre(kPs0, kPs0));
  EXPECT_EQ(made.parts[1].variables.size(), 1u);
  EXPECT_THAT(ops(made.parts[1]), ElementsAre("aten::t", "aten::add_.Tensor"));
}

TEST(Split, RunsALoopOverSeveralTasksAtTheDriver) {
  Program program = loop_program();
  program.variables[0].device = program.intern_device("/job:ps/task:0");
  Program made = split_at_worker(std::move(program));

  EXPECT_THAT(ops(made), ElementsAre(kLoop.name));
  ASSERT_EQ(made.bodies.size(), 1u);
  EXPECT_THAT(tasks(made), ElementsAre(kPs0));
  EXPECT_EQ(made.parts[0].variables.at(0).name, "counter");
  EXPECT_EQ(made.bodies[0].arguments.size(), 3u) << "the counter is known at its task by name";
  EXPECT_TRUE(made.variables.empty());
}

}  // namespace
}  // namespace muster
