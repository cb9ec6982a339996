#include "muster/trace/device_scope.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <iostream>
#include <map>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/control_flow.h"
#include "muster/trace/function.h"
#include "muster/trace/replay_test.h"
#include "muster/trace/variable.h"

namespace muster {
namespace {

using testing_support::message_of;

using ::testing::AllOf;
using ::testing::HasSubstr;

// The devices that the instructions with each op ask for, in their order.
std::map<std::string, std::vector<std::string>> devices_by_op(const Program& program) {
  std::map<std::string, std::vector<std::string>> devices;
  for (const Instruction& instruction : program.instructions) {
    const std::string& name = program.op_of(instruction).name;
    devices[name.substr(0, name.find('.'))].push_back(program.devices[instruction.device]);
  }
  return devices;
}

TEST(DeviceScope, NestsAndTheInnerOneWinsPartByPart) {
  EXPECT_EQ(DeviceScope::current(), "");
  {
    DeviceScope gpu("/device:GPU:0");
    EXPECT_EQ(DeviceScope::current(), "/device:GPU:0");
    DeviceScope worker("/job:worker");
    EXPECT_EQ(DeviceScope::current(), "/job:worker/device:GPU:0");
    {
      DeviceScope cpu("/device:CPU:0");
      EXPECT_EQ(DeviceScope::current(), "/job:worker/device:CPU:0");
      DeviceScope ps("/job:ps");
      EXPECT_EQ(DeviceScope::current(), "/job:ps/device:CPU:0");
    }
    EXPECT_EQ(DeviceScope::current(), "/job:worker/device:GPU:0");
  }
  EXPECT_EQ(DeviceScope::current(), "");
}

TEST(DeviceScope, KeepsTheOrderOfTheParts) {
  DeviceScope task("/task:1");
  DeviceScope cpu("/cpu:2");
  DeviceScope job("/replica:0/job:worker");

  EXPECT_EQ(DeviceScope::current(), "/job:worker/replica:0/task:1/device:CPU:2");
}

TEST(DeviceScope, RejectsWhatIsNoDeviceAndStaysAsItWas) {
  DeviceScope outer("/job:worker");

  EXPECT_THROW(const DeviceScope scope("/job:j/replica:foo"), Error);
  EXPECT_THROW(const DeviceScope scope("/flavour:3"), Error);
  EXPECT_EQ(DeviceScope::current(), "/job:worker");
}

TEST(DeviceScope, IsWhereTheOpsInItWantToRun) {
  auto placed = function([](at::Tensor x) {
    DeviceScope worker("/job:worker");
    at::Tensor s = x + 1;
    at::Tensor p1, p2;
    {
      DeviceScope gpu("/gpu:1");
      p1 = s * 2;
      {
        DeviceScope task("/task:1");
        p2 = p1.exp();
      }
      p2 = p2.neg();
    }
    return p2.sin();
  });

  auto devices = devices_by_op(placed.program(torch::ones({2})));

  EXPECT_THAT(devices["aten::add"], ::testing::ElementsAre("/job:worker"));
  EXPECT_THAT(devices["aten::mul"], ::testing::ElementsAre("/job:worker/device:GPU:1"));
  EXPECT_THAT(devices["aten::exp"], ::testing::ElementsAre("/job:worker/task:1/device:GPU:1"));
  EXPECT_THAT(devices["aten::neg"], ::testing::ElementsAre("/job:worker/device:GPU:1"));
  EXPECT_THAT(devices["aten::sin"], ::testing::ElementsAre("/job:worker"));
}

TEST(DeviceScope, AroundTheCallCountsToo) {
  auto plus = function([](at::Tensor x) {
    DeviceScope cpu("/cpu:0");
    return x + 1;
  });
  DeviceScope scope("/job:worker/task:2");

  auto devices = devices_by_op(plus.program(torch::ones({2})));

  EXPECT_THAT(devices["aten::add"], ::testing::ElementsAre("/job:worker/task:2/device:CPU:0"));
}

TEST(DeviceScope, OfAForwardOpIsThatOfItsBackwardOps) {
  Variable w(torch::ones({2}));
  auto step = function([&](at::Tensor x) {
    at::Tensor y, z;
    {
      DeviceScope first("/job:a");
      y = (w.value() * x).tanh();
    }
    {
      DeviceScope second("/job:b");
      z = y.sigmoid();
    }
    DeviceScope elsewhere("/job:c");
    at::Tensor loss = z.sum();
    return gradient(loss, w);
  });

  auto devices = devices_by_op(step.program(torch::ones({2})));

  EXPECT_THAT(devices["aten::tanh"], ::testing::ElementsAre("/job:a"));
  EXPECT_THAT(devices["aten::tanh_backward"], ::testing::ElementsAre("/job:a"));
  EXPECT_THAT(devices["aten::mul"], ::testing::ElementsAre("/job:a", "/job:a"));  // forward and backward
  EXPECT_THAT(devices["aten::sigmoid"], ::testing::ElementsAre("/job:b"));
  EXPECT_THAT(devices["aten::sigmoid_backward"], ::testing::ElementsAre("/job:b"));
  EXPECT_THAT(devices["aten::sum"], ::testing::ElementsAre("/job:c"));
  EXPECT_THAT(devices["aten::expand"], ::testing::ElementsAre("/job:c"));  // the gradient of the sum
}

TEST(DeviceScope, OfANestedScopeIsThatOfItsBackwardOps) {
  Variable w(torch::ones({2}));
  auto step = function([&](at::Tensor x) {
    DeviceScope outer("/job:a");
    at::Tensor y = (w.value() * x).exp();
    {
      DeviceScope inner("/task:1");
      y = y.tanh();
    }
    y = y.sigmoid();
    return gradient(y.sum(), w);
  });

  auto devices = devices_by_op(step.program(torch::ones({2})));

  EXPECT_THAT(devices["aten::tanh_backward"], ::testing::ElementsAre("/job:a/task:1"));
  EXPECT_THAT(devices["aten::sigmoid_backward"], ::testing::ElementsAre("/job:a"));
}

TEST(DeviceScope, IsWhereVariablesMadeInItLive) {
  std::optional<DeviceScope> scope("/job:localhost/device:CPU:0");
  Variable w(torch::ones({2}));
  scope.reset();
  DeviceScope elsewhere("/job:worker");
  auto read = function([&](at::Tensor x) { return w.value() + x; });

  const Program program = read.program(torch::ones({2}));

  ASSERT_EQ(program.variables.size(), 1);
  EXPECT_EQ(program.devices[program.variables[0].device], "/job:localhost/device:CPU:0");
}

TEST(DeviceScope, ChangesNoResultEvenOnDevicesThatAreNotThere) {
  auto work = [](at::Tensor x) {
    DeviceScope first("/cpu:0");
    at::Tensor y = x.exp();
    DeviceScope second("/device:CPU:7");  // not there: soft placement falls back
    return y.sum() * 2;
  };
  const at::Tensor x = torch::randn({5});
  LogCapture log;

  EXPECT_TRUE(same_bits(work(x), function(work)(x)));
  EXPECT_TRUE(log.contains("device:CPU:7 does not exist"));
}

// In a process that has used no device yet.
void say_what_is_wrong_and_exit() {
  set_local_options({.devices = {.cpus = 2, .gpus = false}, .soft_placement = false});
  const DeviceScope there("/device:CPU:7");
  std::cerr << message_of([] { function([](at::Tensor x) { return x + 1; })(torch::ones({1})); }) << std::endl
            << message_of([] { Variable(torch::ones({1}), {.name = "w"}); }) << std::endl;
  std::_Exit(0);
}

TEST(DeviceScope, OfADeviceThatIsNotThereIsAnErrorWithoutSoftPlacement) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");

  EXPECT_EXIT(say_what_is_wrong_and_exit(), ::testing::ExitedWithCode(0),
              AllOf(HasSubstr("(program \""),
                    HasSubstr("(variable \"w\" asked for \"/device:CPU:7\") does not exist; there are: "),
                    HasSubstr("device:CPU:1")));
}

TEST(DeviceScope, OfControlFlowLeavesMemoryThatIsWrittenWhereItIs) {
  auto work = [](at::Tensor x) {
    auto itself = [&] { return x; };
    at::Tensor same;
    {
      DeviceScope on("/device:CPU:1");
      same = cond(x.sum() > -100, itself, itself);
    }
    const at::Tensor before = same.abs();
    {
      DeviceScope on("/device:CPU:1");
      repeat(2, [&] { same.add_(1); });
    }
    const at::Tensor between = x * 2;
    {
      DeviceScope on("/device:CPU:1");
      repeat(2, [&] { x.mul_(3); });
    }
    return Tensors{before, between, same + 0};
  };
  auto traced = function(work);
  for (int i = 0; i < 20; ++i) {
    const at::Tensor x = torch::randn({100}), y = x.clone();

    EXPECT_TRUE(same_bits(work(x), traced(y)));
    EXPECT_TRUE(same_bits(x, y));
  }
}

TEST(DeviceScope, TrainsOverTwoDevicesAsOnOne) {
  auto train = [](const std::string& front, const std::string& back) {
    torch::manual_seed(5);
    Variable w(torch::randn({6, 6}), {.device = front}), v(torch::randn({6, 2}), {.device = back});
    auto step = function([&](at::Tensor x) {
      at::Tensor hidden, loss;
      {
        DeviceScope on(front);
        hidden = torch::tanh(torch::matmul(x, w));
      }
      {
        DeviceScope on(back);
        loss = torch::matmul(hidden, v).square().mean();
      }
      auto gradients = gradient(loss, w, v);
      w.assign_sub(gradients[0] * 0.1);
      v.assign_sub(gradients[1] * 0.1);
      return loss;
    });
    Tensors results;
    for (int i = 0; i < 5; ++i) results.push_back(step(torch::randn({4, 6})));
    results.push_back(w.value());
    results.push_back(v.value());
    return results;
  };

  EXPECT_TRUE(same_bits(train("/device:CPU:0", "/device:CPU:0"), train("/device:CPU:0", "/device:CPU:1")));
}

}  // namespace
}  // namespace muster
