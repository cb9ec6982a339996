#include <ATen/core/dispatch/Dispatcher.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>

#include "muster/base/status.h"

namespace muster {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

at::Tensor strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride, int64_t offset) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("muster_views::strided", "")
                             .typed<at::Tensor(const at::Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t)>();
  return op.call(self, size, stride, offset);
}

TEST(StridedView, CountsFromTheTensorsOwnFirstElement) {
  const at::Tensor memory = torch::arange(12);
  const at::Tensor part = memory.slice(0, 4, 8);

  EXPECT_TRUE(torch::equal(strided(part, {2, 2}, {2, 1}, 0), torch::tensor({{4, 5}, {6, 7}})));
  EXPECT_TRUE(torch::equal(strided(part, {3}, {4}, -4), torch::tensor({0, 4, 8}))) << "a value may begin before it";
  strided(part, {1}, {1}, 1).fill_(50);
  EXPECT_EQ(memory[5].item<int64_t>(), 50);
}

TEST(StridedView, RefusesWhateverReachesBeyondTheMemory) {
  const at::Tensor part = torch::arange(12).slice(0, 4, 8);
  auto refused = [&](std::vector<int64_t> size, std::vector<int64_t> stride, int64_t offset) {
    try {
      strided(part, size, stride, offset);
      return false;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("lie outside of its memory"));
      return error.code() == StatusCode::kInvalidArgument;
    }
  };

  EXPECT_FALSE(refused({8}, {1}, 0));
  EXPECT_FALSE(refused({0, 3}, {1, 1}, 8)) << "nothing is read";
  EXPECT_TRUE(refused({9}, {1}, 0));
  EXPECT_TRUE(refused({1}, {1}, 8));
  EXPECT_TRUE(refused({1}, {1}, -5));
  EXPECT_TRUE(refused({2}, {-1}, 1));
  EXPECT_TRUE(refused({-1}, {1}, 0));
  EXPECT_TRUE(refused({-1, 0}, {1, 1}, 0));
  EXPECT_TRUE(refused({1}, {1, 1}, 0)) << "as many strides as sizes";
  EXPECT_TRUE(refused({0}, {1}, 9));
  EXPECT_TRUE(refused({1}, {1}, kMost));
  EXPECT_TRUE(refused({1}, {1}, std::numeric_limits<int64_t>::min()));
  EXPECT_TRUE(refused({kMost}, {kMost}, 0));
  EXPECT_TRUE(refused({2, 3}, {kMost - 4, kMost / 2}, 0)) << "sums that overflow";
  EXPECT_THROW(strided(at::Tensor(), {1}, {1}, 0), std::exception);
}

}  // namespace
}  // namespace muster
