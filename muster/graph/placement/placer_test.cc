#include "muster/graph/placement/placer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/graph/checker.h"
#include "muster/graph/test_program.h"

namespace muster {
namespace {

using namespace testing_support;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kCpu0 = "/job:localhost/replica:0/task:0/device:CPU:0";
const std::string kCpu1 = "/job:localhost/replica:0/task:0/device:CPU:1";
const std::string kPs = "/job:ps/replica:0/task:0/device:CPU:0";

PlacerOptions local() { return {.devices = {kCpu0, kCpu1}, .default_device = kCpu0}; }

// Two workers with two GPUs each, and one ps.
PlacerOptions cluster() {
  PlacerOptions options{.devices = {kPs}, .default_device = "/job:worker/replica:0/task:0/device:GPU:0"};
  for (const char* task : {"0", "1"}) {
    for (const char* device : {"CPU:0", "GPU:1", "GPU:0"}) {
      options.devices.push_back(str_cat("/job:worker/replica:0/task:", task, "/device:", device));
    }
  }
  return options;
}

// "aten::relu CPU:0" for each instruction.
std::vector<std::string> short_placement(const Program& program) {
  std::vector<std::string> lines;
  for (const Instruction& instruction : program.instructions) {
    const std::string& device = program.devices[instruction.device];
    lines.push_back(str_cat(program.op_of(instruction).name, " ", device.substr(device.rfind('/') + 8)));
  }
  return lines;
}

std::string device_of_wish(const std::string& wish, const PlacerOptions& options) {
  Builder b;
  b.relu(b.constant(1), wish);
  Program program = place(b.finish({}), options);
  return program.devices[program.instructions[0].device];
}

std::string complaint(const Program& program, const PlacerOptions& options) {
  try {
    place(program, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    return error.status().message();
  }
  return "";
}

// Behaviour 115.
TEST(Placer, CompletesAWishAsTensorFlowDoes) {
  EXPECT_EQ(device_of_wish("", cluster()), "/job:worker/replica:0/task:0/device:GPU:0");
  EXPECT_EQ(device_of_wish("/job:worker", cluster()), "/job:worker/replica:0/task:0/device:GPU:0");
  EXPECT_EQ(device_of_wish("/job:worker/device:GPU:1", cluster()), "/job:worker/replica:0/task:0/device:GPU:1");
  EXPECT_EQ(device_of_wish("/job:worker/task:1/device:GPU:1", cluster()), "/job:worker/replica:0/task:1/device:GPU:1");
  EXPECT_EQ(device_of_wish("/job:worker/task:1", cluster()), "/job:worker/replica:0/task:1/device:GPU:0");
  EXPECT_EQ(device_of_wish("/task:1", cluster()), "/job:worker/replica:0/task:1/device:GPU:0");
  EXPECT_EQ(device_of_wish("/job:ps", cluster()), kPs);
  EXPECT_EQ(device_of_wish("/device:CPU", cluster()), "/job:worker/replica:0/task:0/device:CPU:0");

  PlacerOptions second = cluster();
  second.default_device = "/job:worker/replica:0/task:1/device:GPU:0";
  EXPECT_EQ(device_of_wish("/job:worker", second), "/job:worker/replica:0/task:0/device:GPU:0") << "no task: task 0";
  EXPECT_EQ(device_of_wish("/device:CPU:0", second), "/job:worker/replica:0/task:1/device:CPU:0");
}

TEST(Placer, PutsWhatHasNoWishOnTheDefaultDevice) {
  LogCapture quiet;
  Program program = place(small_program(), {.devices = {}, .default_device = kPs});

  EXPECT_EQ(program.devices, (std::vector<std::string>{"", kPs}));
  for (const Instruction& instruction : program.instructions) EXPECT_EQ(instruction.device, 1);
  check(program);
}

TEST(Placer, ChoosesADefaultDeviceItself) {
  EXPECT_EQ(device_of_wish("", {.devices = {}, .default_device = ""}), kCpu0);
  EXPECT_EQ(
      device_of_wish("", {.devices = {"/job:w/replica:0/task:0/device:CPU:0", "/job:w/replica:0/task:0/device:GPU:3"},
                          .default_device = ""}),
      "/job:w/replica:0/task:0/device:GPU:3");
}

TEST(Placer, PutsAnUpdateOnTheDeviceOfItsVariable) {
  Builder b;
  ValueId x = b.argument(), w = b.variable("w", "/device:CPU:1");
  ValueId gradient = b.relu(x);
  b.add_(b.op("aten::t", {ref(w)}), gradient);

  Program program = place(b.finish({}), local());

  EXPECT_THAT(short_placement(program),
              ElementsAre("aten::relu CPU:0", "aten::t CPU:1", "muster::copy CPU:1", "aten::add_.Tensor CPU:1"));
  EXPECT_EQ(program.instructions[2].arguments[0], ref(gradient));
  EXPECT_EQ(program.instructions[3].arguments[1], ref(program.instructions[2].results[0][0]));
  check(program);
}

TEST(Placer, LetsTheMemoryWinOverAWishAndSaysSoOnce) {
  LogCapture log;
  Builder b;
  ValueId x = b.argument(), w = b.variable("w", "/device:CPU:1");
  b.add_(w, x, "/device:CPU:0");
  b.add_(w, x, "/device:CPU:0");

  Program program = place(b.finish({}), local());

  EXPECT_EQ(program.devices[program.instructions.back().device], kCpu1);
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_EQ(log.lines()[0].text, "placer: program \"step\", instruction 0 (aten::add_.Tensor) and 1 more asked for " +
                                     kCpu0 + ", but the memory that it works on is on " + kCpu1);
}

TEST(Placer, SaysNothingOfViewsThatAreWhereTheirMemoryIs) {
  LogCapture log;
  Builder b;
  ValueId w = b.variable("w", "/device:CPU:1"), view = b.op("aten::t", {ref(w)}, "/device:CPU:0");

  Program program = place(b.finish({view}), local());

  EXPECT_EQ(program.devices[program.instructions[0].device], kCpu1);
  EXPECT_TRUE(log.lines().empty());
}

TEST(Placer, CopiesAValueOnceForAllItsReaders) {
  Builder b;
  ValueId x = b.argument(), y = b.relu(x);
  b.relu(y, "/device:CPU:1");
  b.add(y, y, "/device:CPU:1");
  Program program = place(b.finish({}), local());

  EXPECT_THAT(short_placement(program),
              ElementsAre("aten::relu CPU:0", "muster::copy CPU:1", "aten::relu CPU:1", "aten::add.Tensor CPU:1"));
  check(program);
}

TEST(Placer, CopiesAgainAfterAWrite) {
  Builder b;
  ValueId x = b.argument(), w = b.variable("w");
  b.relu(w, "/device:CPU:1");
  b.add_(b.op("aten::t", {ref(w)}), x);
  b.relu(w, "/device:CPU:1");
  Program program = place(b.finish({}), local());

  EXPECT_THAT(short_placement(program),
              ElementsAre("muster::copy CPU:1", "aten::relu CPU:1", "aten::t CPU:0", "aten::add_.Tensor CPU:0",
                          "muster::copy CPU:1", "aten::relu CPU:1"));
}

TEST(Placer, LeavesConstantsWithTheirReaders) {
  Builder b;
  ValueId c = b.constant(2);
  b.relu(c, "/device:CPU:0");
  b.relu(c, "/device:CPU:1");
  Program program = place(b.finish({c}), local());

  EXPECT_THAT(short_placement(program), ElementsAre("aten::relu CPU:0", "aten::relu CPU:1"));
}

TEST(Placer, TreatsAConstantThatIsWrittenAsMemory) {
  Builder b;
  ValueId c = b.constant(2, false), x = b.argument();
  b.add_(c, x, "/device:CPU:1");
  b.relu(c, "/device:CPU:0");
  Program program = place(b.finish({}), local());

  EXPECT_THAT(short_placement(program),
              ElementsAre("muster::copy CPU:1", "aten::add_.Tensor CPU:1", "muster::copy CPU:0", "aten::relu CPU:0"));
}

TEST(Placer, LeavesOutputsWhereTheyAre) {
  Builder b;
  Program program = place(b.finish({b.relu(b.argument(), "/device:CPU:1")}), local());

  EXPECT_EQ(program.instructions.size(), 2u);
  EXPECT_EQ(program.outputs[0], program.instructions[1].results[0][0]);
}

TEST(Placer, FallsBackSoftlyWithOneLine) {
  LogCapture log;
  Builder b;
  ValueId x = b.argument();
  b.relu(x, "/device:GPU:7");
  b.relu(x, "/gpu:7");

  Program program = place(b.finish({}), local());

  EXPECT_THAT(short_placement(program), ElementsAre("aten::relu CPU:0", "aten::relu CPU:0"));
  ASSERT_EQ(log.lines().size(), 1u);
  EXPECT_THAT(log.lines()[0].text, HasSubstr("/job:localhost/replica:0/task:0/device:GPU:7 does not exist"));
}

TEST(Placer, NamesTheDevicesThatExistWhenOneDoesNot) {
  Builder b;
  b.relu(b.argument(), "/device:GPU:7");
  Builder elsewhere;
  elsewhere.relu(elsewhere.argument(), "/job:ps");
  PlacerOptions hard = local();
  hard.soft_placement = false;

  EXPECT_EQ(
      complaint(b.program, hard),
      "device \"/job:localhost/replica:0/task:0/device:GPU:7\" (program \"step\", instruction 0 (aten::relu) asked for "
      "\"/device:GPU:7\") does not exist; there are: " +
          kCpu0 + ", " + kCpu1);
  EXPECT_THAT(complaint(elsewhere.program, local()), HasSubstr("nor does any other of its task"));
  EXPECT_THAT(complaint(b.program, {.devices = {kCpu0}, .default_device = kCpu1}), HasSubstr("default device"));
}

TEST(Placer, RefusesAnInstructionThatWritesOnTwoDevices) {
  Builder b;
  ValueId x = b.argument(), v = b.variable("v"), w = b.variable("w", "/device:CPU:1");
  b.instruction("aten::_foreach_add_.List", {refs({v, w}), refs({x, x}), integer(1)}, {});

  EXPECT_THAT(complaint(b.program, local()), HasSubstr("writes to memory on " + kCpu0 + " and on " + kCpu1));
}

TEST(Placer, RunsALoopWhereTheMemoryIsThatItWrites) {
  Program program = loop_program();
  program.variables[0].device = program.intern_device("/device:CPU:1");

  Program result = place(program, local());

  EXPECT_THAT(short_placement(result), ElementsAre("muster::copy CPU:1", "muster::copy CPU:1", "muster::loop CPU:1"));
  EXPECT_THAT(short_placement(result.bodies[0]), ElementsAre("aten::add_.Tensor CPU:1", "aten::add.Tensor CPU:1"));
  for (const ProgramArgument& argument : result.bodies[0].arguments) {
    EXPECT_EQ(result.bodies[0].devices[argument.device], kCpu1);
  }
  check(result);
}

TEST(Placer, LeavesInABodyTheWrittenMemoryWhereItIs) {
  Program program = loop_program();
  program.variables[0].device = program.intern_device("/device:CPU:1");
  program.instructions[0].device = program.intern_device("/device:CPU:0");

  Program result = place(program, local());

  EXPECT_THAT(short_placement(result), ElementsAre("muster::loop CPU:0"));
  EXPECT_THAT(short_placement(result.bodies[0]),
              ElementsAre("muster::copy CPU:1", "aten::add_.Tensor CPU:1", "aten::add.Tensor CPU:0"));
  check(result);
}

TEST(Placer, BringsTheStateOfALoopBackToWhereItBegan) {
  Program program = loop_program();
  Program& body = program.bodies[0];
  body.instructions[1].device = body.intern_device("/device:CPU:1");

  Program result = place(program, local());

  EXPECT_THAT(short_placement(result.bodies[0]),
              ElementsAre("aten::add_.Tensor CPU:0", "muster::copy CPU:1", "muster::copy CPU:1",
                          "aten::add.Tensor CPU:1", "muster::copy CPU:0"));
  EXPECT_EQ(result.bodies[0].outputs[0], result.bodies[0].instructions.back().results[0][0]);
  check(result);
}

TEST(Placer, BringsTheResultsOfTwoBranchesToOnePlace) {
  auto branch = [](const std::string& device) {
    Builder b("branch");
    return b.finish({b.relu(b.argument(), device)});
  };
  auto placed = [&](const std::string& then, const std::string& otherwise) {
    Builder b;
    ValueId p = b.argument({DType::kBool, {}}), x = b.argument();
    int32_t first = b.body(branch(then)), second = b.body(branch(otherwise));
    size_t cond = b.instruction(kCond.name, {ref(p), refs({x})}, {1}, "", {first, second});
    ValueId result = b.program.instructions[cond].results[0][0];
    b.relu(result, "/device:CPU:1");
    return place(b.finish({}), local());
  };

  Program agree = placed("/device:CPU:1", "/device:CPU:1");
  EXPECT_THAT(short_placement(agree), ElementsAre("muster::cond CPU:0", "aten::relu CPU:1"));
  Program differ = placed("/device:CPU:1", "/device:CPU:0");
  EXPECT_THAT(short_placement(differ), ElementsAre("muster::cond CPU:0", "muster::copy CPU:1", "aten::relu CPU:1"));
  EXPECT_THAT(short_placement(differ.bodies[0]),
              ElementsAre("muster::copy CPU:1", "aten::relu CPU:1", "muster::copy CPU:0"));
  check(agree);
  check(differ);
}

TEST(Placer, PlacesABodyWithTwoCallersForEachOfThem) {
  Builder branch("branch");
  Program body = branch.finish({branch.relu(branch.argument())});
  Builder b;
  ValueId p = b.argument({DType::kBool, {}}), x = b.argument();
  int32_t index = b.body(body);
  b.instruction(kCond.name, {ref(p), refs({x})}, {1}, "/device:CPU:0", {index, index});
  b.instruction(kCond.name, {ref(p), refs({x})}, {1}, "/device:CPU:1", {index, index});

  Program program = place(b.finish({}), local());

  ASSERT_EQ(program.bodies.size(), 2u);
  EXPECT_THAT(short_placement(program.bodies[0]), ElementsAre("aten::relu CPU:0"));
  EXPECT_THAT(short_placement(program.bodies[1]), ElementsAre("aten::relu CPU:1"));
}

TEST(Placer, ReportsAndLogsWhereThingsRun) {
  LogCapture log;
  Builder b;
  ValueId x = b.argument(), w = b.variable("w", "/device:CPU:1");
  b.add_(w, b.relu(x));
  PlacerOptions options = local();
  options.log_placement = true;
  std::vector<PlacedOp> placed;

  Program program = place(b.finish({}), options, &placed);

  EXPECT_EQ(placement_table(program),
            "op                 device\n"
            "variable w         " +
                kCpu1 +
                "\n"
                "aten::relu         " +
                kCpu0 +
                "\n"
                "muster::copy       " +
                kCpu1 +
                "\n"
                "aten::add_.Tensor  " +
                kCpu1 + "\n");
  EXPECT_TRUE(log.contains(placement_table(program)));
  ASSERT_EQ(placed.size(), 3u);
  EXPECT_EQ(placed[0].why, "default device");
  EXPECT_EQ(placed[1].why, "copied for its reader");
  EXPECT_EQ(placed[2].why, "with its memory");
}

// ---- Ops that libtorch has no kernel of for a device

PlacerOptions without_gpu_kernel(const std::string& op) {
  PlacerOptions options = cluster();
  options.has_kernel = [op](const std::string& name, const std::string& type) { return name != op || type != "GPU"; };
  return options;
}

TEST(Placer, MovesAnOpWithoutAKernelToTheCpuOfItsTask) {
  Builder b;
  const ValueId x = b.argument();
  b.relu(b.relu(x), "/job:worker/task:1/device:GPU:1");

  PlacerOptions options = without_gpu_kernel("aten::relu");
  Program program = place(b.finish({}), options);
  for (const Instruction& instruction : program.instructions) {
    if (program.op_of(instruction).name != "aten::relu") continue;
    EXPECT_THAT(program.devices[instruction.device], HasSubstr("device:CPU:0"));
  }
  EXPECT_THAT(short_placement(program),
              ElementsAre("muster::copy CPU:0", "aten::relu CPU:0", "muster::copy CPU:0", "aten::relu CPU:0"));
  EXPECT_THAT(program.devices[program.instructions.back().device], HasSubstr("task:1"));
}

TEST(Placer, RefusesAnOpWithoutAKernelWhereSoftPlacementIsOff) {
  Builder b;
  b.relu(b.argument());

  PlacerOptions options = without_gpu_kernel("aten::relu");
  options.soft_placement = false;
  EXPECT_THAT(complaint(b.finish({}), options), HasSubstr("libtorch has no kernel of aten::relu for a GPU"));
}

}  // namespace
}  // namespace muster
