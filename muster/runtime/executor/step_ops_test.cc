#include "muster/runtime/executor/step_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/status.h"

namespace muster::step_ops_test {
namespace {

TEST(StepOps, DescendAsWithANumber) {
  at::Tensor value = torch::randn({5, 3});
  const at::Tensor direction = torch::randn({5, 3}), expected = value.sub(direction, 0.3);

  step_ops::descend_(value, direction, torch::tensor({0.3}, torch::kDouble));

  EXPECT_TRUE(torch::equal(value, expected));
}

TEST(StepOps, TakeOneNumberAsTheRate) {
  at::Tensor value = torch::zeros({2});
  for (const at::Tensor& wrong : {torch::zeros({2}), torch::zeros({0}), at::Tensor()}) {
    EXPECT_THROW(step_ops::descend_(value, torch::ones({2}), wrong), Error);
  }
  EXPECT_TRUE(torch::equal(value, torch::zeros({2})));
}

TEST(StepOps, RefuseADirectionOfAnotherShape) {
  at::Tensor value = torch::zeros({2});
  EXPECT_THROW(step_ops::descend_(value, torch::ones({3}), torch::tensor(0.1)), c10::Error);
}

TEST(StepOps, LeaveWhatWaitsAsItIs) {
  const at::Tensor value = torch::ones({2}), count = torch::zeros({1}, torch::kLong);

  step_ops::wait_for_({value, count}, torch::full({3}, 2.0F));

  EXPECT_TRUE(torch::equal(value, torch::ones({2})));
  EXPECT_EQ(count.item<int64_t>(), 0);
}

}  // namespace
}  // namespace muster::step_ops_test
