#include "muster/runtime/gpu/device_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "muster/base/test_errors.h"

namespace muster::device_flags_test {

using ::testing::HasSubstr;
using testing_support::caught;
using testing_support::error_of;

// On the CPU, whose kernels do the same.
TEST(DeviceFlags, PutOthersInPlaceOfIndicesThatAreOutOfRangeAndSaySoLater) {
  DeviceFlags flags(at::kCPU);
  const at::Tensor ids = torch::tensor({3, 7, -1}, torch::kLong);

  const at::Tensor safe = flags.safe(ids, {.least = 0, .end = 5}, "ids of the table");

  EXPECT_TRUE(torch::equal(safe, torch::tensor({3, 4, 0}, torch::kLong)));
  EXPECT_TRUE(caught([&] { flags.throw_if_set(); }).ok());  // not published yet
  flags.publish();
  EXPECT_THAT(error_of([&] { flags.throw_if_set(); }), HasSubstr("ids of the table"));
  EXPECT_TRUE(caught([&] { flags.throw_if_set(); }).ok());  // once
}

TEST(DeviceFlags, LeaveAloneWhatIsInOrder) {
  DeviceFlags flags(at::kCPU);
  const at::Tensor ids = torch::tensor({4, 0, -100}, torch::kLong);

  const at::Tensor safe = flags.safe(ids, {.least = 0, .end = 5, .or_else = -100}, "targets");
  flags.publish();

  EXPECT_TRUE(torch::equal(safe, ids));
  EXPECT_TRUE(caught([&] { flags.throw_if_set(); }).ok());
}

TEST(DeviceFlags, LookOnceAtMemoryThatNobodyWrites) {
  DeviceFlags flags(at::kCPU);
  const at::Tensor ids = torch::tensor({1, 2}, torch::kLong);
  const at::Tensor first = flags.safe(ids, {.least = 0, .end = 5}, "ids");

  EXPECT_TRUE(flags.safe(ids, {.least = 0, .end = 5}, "ids").is_same(first));
  EXPECT_FALSE(flags.safe(ids, {.least = 0, .end = 2}, "ids").is_same(first));
  flags.forget(ids.view({2, 1}));
  EXPECT_FALSE(flags.safe(ids, {.least = 0, .end = 5}, "ids").is_same(first));
}

TEST(DeviceFlags, TakeWhatIsNoNumberForNoFraction) {
  DeviceFlags flags(at::kCPU);

  const at::Tensor safe = flags.safe_fractions(torch::tensor({0.5, std::nan(""), 1.5, 1.0}), "probabilities");
  flags.publish();

  EXPECT_TRUE(torch::equal(safe, torch::tensor({0.5, 0.0, 0.0, 1.0})));
  EXPECT_THAT(error_of([&] { flags.throw_if_set(); }), HasSubstr("probabilities"));
}

}  // namespace muster::device_flags_test
