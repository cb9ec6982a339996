#include "muster/runtime/worker/lost_device.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cstdlib>
#include <functional>
#include <iostream>

#include "muster/graph/serialize.h"
#include "muster/graph/test_program.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {
namespace {

constexpr char kLoss[] = "CUDA error: an illegal memory access was encountered\nCompile with `TORCH_USE_CUDA_DSA`";

bool can_be_read(int file) {
  pollfd end{.fd = file, .events = POLLIN, .revents = 0};
  return ::poll(&end, 1, 0) == 1;
}

TEST(LostDevice, IsNotWhatCudaOrItsLibrariesRefuse) {
  for (const char* refusal : {"CUDA error: out of memory", "CUDA error: invalid configuration argument",
                              "CUDA error: too many resources requested for launch",
                              "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx(handle)`",
                              "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
                              "The size of tensor a (2) must"}) {
    EXPECT_FALSE(says_device_lost(refusal)) << refusal;
  }

  EXPECT_FALSE(device_is_lost());
  EXPECT_FALSE(can_be_read(lost_device_file()));
}

TEST(LostDevice, IsNotWhatIsRefusedWhereThatIsExpected) {
  const RefusalsExpected trying;

  EXPECT_FALSE(says_device_lost(kLoss));
  EXPECT_FALSE(device_is_lost());
}

// A process that has lost its device stays so: it is this program, begun anew for the statement that has to end it.
TEST(LostDeviceDeathTest, RefusesWorkAndNamesTheCause) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto refused = [](const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      std::cerr << error.status() << "\n";
      return error.code() == StatusCode::kUnavailable &&
             error.status().message().find("an illegal memory access") != std::string::npos;
    }
    return false;
  };
  EXPECT_EXIT(
      {
        LocalWorker worker({.devices = {.gpus = false}});
        testing_support::Builder b;
        const Program program = b.finish({b.relu(b.argument())});
        const ProgramHandle handle = worker.register_program(program);
        bool right = worker.status().lost.empty() && !device_is_lost();

        right = says_device_lost(kLoss) && device_is_lost() && can_be_read(lost_device_file()) && right;

        right = refused([&] { worker.run(handle, {}); }) && right;
        right = refused([&] { worker.register_program(program); }) && right;
        right = refused([&] { worker.register_bytes(serialize(program)); }) && right;
        right = worker.status().lost.find("an illegal memory access") != std::string::npos && right;
        std::_Exit(right ? 0 : 1);
      },
      testing::ExitedWithCode(0), "must be started anew");
}

}  // namespace
}  // namespace muster
