#include "muster/runtime/row_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/status.h"

namespace muster {
namespace {

TEST(RowOps, PutsTogetherWhatUniqueTookApart) {
  const at::Tensor table = torch::randn({10, 3});
  const at::Tensor ids = torch::tensor({7, 2, 7, -1, 9, 0, 2}, torch::kLong);

  auto [places, parts] = rows::unique(ids, {0, 4, 10});
  const at::Tensor back = rows::expand(places, {rows::gather(table.slice(0, 0, 4).contiguous(), parts[0]),
                                                rows::gather(table.slice(0, 4, 10).contiguous(), parts[1])});

  EXPECT_EQ(parts[0].numel() + parts[1].numel(), 4);  // 7, 2, 9 and 0
  at::Tensor expected = table.index_select(0, ids.clamp_min(0));
  expected[3].zero_();
  EXPECT_TRUE(torch::equal(back, expected));
}

TEST(RowOps, SumsTheGradientsOfARowThatIsThereTwice) {
  const at::Tensor ids = torch::tensor({1, 5, 1, -1}, torch::kLong);
  const at::Tensor gradient = torch::arange(8, torch::kFloat).reshape({4, 2});

  auto [places, parts] = rows::unique(ids, {0, 3, 6});
  auto sums = rows::sum(gradient, places, parts);

  EXPECT_TRUE(torch::equal(sums[0], torch::tensor({{4.0F, 6.0F}})));
  EXPECT_TRUE(torch::equal(sums[1], torch::tensor({{2.0F, 3.0F}})));
}

TEST(RowOps, RefusesIdsThatAreTooLargeByName) {
  try {
    rows::unique(torch::tensor({6}, torch::kLong), {0, 3, 6});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kOutOfRange);
    EXPECT_THAT(error.what(), testing::HasSubstr("id 6 of a table with 6 rows"));
  }
  EXPECT_THROW(rows::gather(torch::zeros({2, 2}), torch::tensor({2}, torch::kLong)), Error);
  EXPECT_THROW(rows::unique(torch::tensor({1}, torch::kInt), {0, 3}), Error);
}

TEST(RowOps, RoutesEveryIdInItsOrder) {
  auto [parts, positions] = rows::route(torch::tensor({5, 0, 5, 1}, torch::kLong), {0, 2, 6});

  EXPECT_TRUE(torch::equal(parts[0], torch::tensor({0, 1}, torch::kLong)));
  EXPECT_TRUE(torch::equal(parts[1], torch::tensor({3, 3}, torch::kLong)));
  EXPECT_TRUE(torch::equal(positions[1], torch::tensor({0, 2}, torch::kLong)));
}

}  // namespace
}  // namespace muster
