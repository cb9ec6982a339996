#include "muster/runtime/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"

namespace muster {
namespace {

TEST(LocalDevices, NamesLogicalCpuDevices) {
  LocalDevices devices({.task = "/job:worker/replica:0/task:2", .cpus = 2, .gpus = false});

  EXPECT_EQ(devices.names(), (std::vector<std::string>{"/job:worker/replica:0/task:2/device:CPU:0",
                                                       "/job:worker/replica:0/task:2/device:CPU:1"}));
  EXPECT_EQ(devices.default_name(), devices.names()[0]);
  EXPECT_TRUE(devices.device(devices.names()[1]).is_cpu());
}

TEST(LocalDevices, ListsWhatExistsWhenAskedForSomethingElse) {
  LocalDevices devices({.gpus = false});

  try {
    devices.device("/job:localhost/replica:0/task:0/device:CPU:3");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.status().message(),
              "device \"/job:localhost/replica:0/task:0/device:CPU:3\" does not exist here; there are "
              "/job:localhost/replica:0/task:0/device:CPU:0");
  }
}

TEST(LocalDevices, LeaveGpusToOthersThanParameterServersUnlessTold) {
  LocalDevices ps({.task = "/job:ps/replica:0/task:0"});
  LocalDevices worker({.task = "/job:worker/replica:0/task:0"});
  LocalDevices told({.task = "/job:ps/replica:0/task:0", .gpus = true});
  LocalDevices worker_told({.task = "/job:worker/replica:0/task:0", .gpus = true});

  EXPECT_THAT(ps.names(), testing::ElementsAre("/job:ps/replica:0/task:0/device:CPU:0"));
  EXPECT_EQ(told.names().size(), worker_told.names().size());  // with as many GPUs as the machine has
  EXPECT_EQ(worker.names().size(), LocalDevices().names().size());
}

TEST(LocalDevices, ShareOutTheGpusOfAMachineEvenly) {
  using testing::ElementsAre;
  EXPECT_THAT(own_gpus(4, {}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(own_gpus(4, {.place = 0, .tasks = 2}), ElementsAre(0, 1));
  EXPECT_THAT(own_gpus(4, {.place = 1, .tasks = 2}), ElementsAre(2, 3));
  EXPECT_THAT(own_gpus(5, {.place = 1, .tasks = 2}), ElementsAre(2, 3)) << "as many as the other one";
  EXPECT_THAT(own_gpus(2, {.place = 1, .tasks = 4}), ElementsAre(0)) << "with the first task";
  EXPECT_THAT(own_gpus(2, {.place = 3, .tasks = 4}), ElementsAre(1));
  EXPECT_THAT(own_gpus(0, {.place = 1, .tasks = 2}), testing::IsEmpty());

  EXPECT_THROW(own_gpus(4, {.place = 2, .tasks = 2}), Error);
  EXPECT_THROW(own_gpus(4, {.place = -1, .tasks = 2}), Error);
  EXPECT_THROW(own_gpus(4, {.place = 0, .tasks = 0}), Error);
}

TEST(LocalDevices, NameADevice) {
  LocalDevices devices({.cpus = 2, .gpus = false});

  EXPECT_EQ(devices.name(at::Device(at::kCPU)), "/job:localhost/replica:0/task:0/device:CPU:0");
  EXPECT_EQ(devices.name(at::Device(at::kCUDA, 7)), "");
}

TEST(LocalDevices, NeedsAtLeastOneCpuDevice) { EXPECT_THROW(LocalDevices({.cpus = 0}), Error); }

TEST(LocalDevices, RefusesSharesOfGpusThatThereCannotBe) {
  for (const LocalDevicesOptions& options :
       {LocalDevicesOptions{.per_gpu = 0, .gpus = false}, LocalDevicesOptions{.gpu_memory = -1, .gpus = false}}) {
    try {
      LocalDevices devices(options);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(error.what(), testing::HasSubstr("logical devices: "));
    }
  }
}

}  // namespace
}  // namespace muster
