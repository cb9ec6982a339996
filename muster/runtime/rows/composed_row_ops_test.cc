#include "muster/runtime/rows/composed_row_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/status.h"
#include "muster/base/test_errors.h"
#include "muster/runtime/rows/row_ops.h"

namespace muster::composed_row_ops_test {
namespace {

using testing_support::caught;

using rows::composed::check_rows;
namespace composed = rows::composed;

const at::Tensor kIds = torch::tensor({7, 2, 7, -1, 9, 0, 2}, torch::kLong);
const at::Tensor kRate = torch::scalar_tensor(0.1, torch::kDouble);

TEST(ComposedRowOps, PutTogetherWhatUniqueTookApart) {
  const at::Tensor table = torch::randn({10, 3});

  auto [places, parts] = composed::unique(kIds, {0, 4, 10});
  const at::Tensor back = composed::expand(places, {composed::gather(table.slice(0, 0, 4).contiguous(), parts[0]),
                                                    composed::gather(table.slice(0, 4, 10).contiguous(), parts[1])});

  EXPECT_TRUE(torch::equal(parts[0], torch::tensor({0, 2}, torch::kLong)));
  EXPECT_TRUE(torch::equal(parts[1], torch::tensor({3, 5}, torch::kLong)));
  EXPECT_EQ(places.scalar_type(), torch::kInt);
  at::Tensor expected = table.index_select(0, kIds.clamp_min(0));
  expected[3].zero_();
  EXPECT_TRUE(torch::equal(back, expected));
}

TEST(ComposedRowOps, SumTheGradientsOfARowThatIsThereTwice) {
  const at::Tensor gradient = torch::randn({7, 2});

  auto [places, parts] = composed::unique(kIds, {0, 4, 10});
  const std::vector<at::Tensor> sums = composed::sum(gradient, places, parts);

  EXPECT_TRUE(torch::allclose(sums[0], torch::stack({gradient[5], gradient[1] + gradient[6]})));
  EXPECT_TRUE(torch::allclose(sums[1], torch::stack({gradient[0] + gradient[2], gradient[4]})));
}

TEST(ComposedRowOps, RouteEveryIdInItsOrderAsTheKernelDoes) {
  const at::Tensor ids = torch::tensor({5, 0, 5, 1, 2, 0}, torch::kLong);

  auto [parts, positions] = composed::route(ids, {0, 2, 2, 6});
  auto [expected_parts, expected_positions] = rows::route(ids, {0, 2, 2, 6});

  ASSERT_EQ(parts.size(), expected_parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    EXPECT_TRUE(torch::equal(parts[i], expected_parts[i])) << i;
    EXPECT_TRUE(torch::equal(positions[i], expected_positions[i])) << i;
  }
}

TEST(ComposedRowOps, HaveNothingToDoForNoIds) {
  const at::Tensor none = torch::empty({0}, torch::kLong);

  auto [places, parts] = composed::unique(none, {0, 4, 10});
  EXPECT_EQ(places.numel(), 0);
  EXPECT_EQ(parts[0].numel() + parts[1].numel(), 0);
  EXPECT_EQ(composed::gather(torch::randn({3, 2}), none).size(0), 0);
}

TEST(ComposedRowOps, RefuseRowsThatAreNotThere) {
  EXPECT_EQ(caught([] { composed::unique(torch::tensor({6}, torch::kLong), {0, 3, 6}); }).code(),
            StatusCode::kOutOfRange);
  EXPECT_EQ(caught([] { composed::route(torch::tensor({-1}, torch::kLong), {0, 3, 6}); }).code(),
            StatusCode::kOutOfRange);
  EXPECT_EQ(caught([] { composed::route(torch::tensor({6}, torch::kLong), {0, 3, 6}); }).code(),
            StatusCode::kOutOfRange);
  EXPECT_EQ(caught([] { composed::gather(torch::zeros({2, 2}), torch::tensor({2}, torch::kLong)); }).code(),
            StatusCode::kOutOfRange);
  EXPECT_EQ(caught([] { composed::expand(torch::tensor({2}, torch::kInt), {torch::zeros({2, 2})}); }).code(),
            StatusCode::kOutOfRange);
  EXPECT_EQ(caught([] { composed::gather(torch::zeros({2, 2}), torch::tensor({1}, torch::kInt)); }).code(),
            StatusCode::kInvalidArgument);
}

class ComposedUpdates : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    torch::manual_seed(1);
    for (at::Tensor& each : tables_) each = torch::rand({6, 4}).to(GetParam());
    gradient_ = torch::randn({3, 4}).to(GetParam());
  }
  // Another set of the same numbers.
  std::array<at::Tensor, 3> copies() const { return {tables_[0].clone(), tables_[1].clone(), tables_[2].clone()}; }
  void expect_close(const std::array<at::Tensor, 3>& a, const std::array<at::Tensor, 3>& b) const {
    const double tolerance = GetParam() == at::kDouble ? 1e-12 : GetParam() == at::kFloat ? 1e-6 : 1e-2;
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::allclose(a[i], b[i], tolerance, tolerance)) << i;
  }

  const at::Tensor ids_ = torch::tensor({4, 0, 5}, torch::kLong);
  std::array<at::Tensor, 3> tables_;
  at::Tensor gradient_;
};

TEST_P(ComposedUpdates, AddAsTheKernelDoes) {
  auto a = copies(), b = copies();
  composed::add_(a[0], ids_, gradient_, -0.5);
  rows::add_(b[0], ids_, gradient_, -0.5);
  expect_close(a, b);
  EXPECT_FALSE(torch::equal(a[0], tables_[0]));
}

TEST_P(ComposedUpdates, TakeAStepOfAdagradAsTheKernelDoes) {
  auto a = copies(), b = copies();
  composed::adagrad_(a[0], a[1], ids_, gradient_, kRate, 1e-7);
  rows::adagrad_(b[0], b[1], ids_, gradient_, kRate, 1e-7);
  expect_close(a, b);
  EXPECT_FALSE(torch::equal(a[1], tables_[1]));
}

TEST_P(ComposedUpdates, TakeAStepOfAdamAsTheKernelDoes) {
  auto a = copies(), b = copies();
  const at::Tensor step = torch::scalar_tensor(3, torch::kFloat);
  composed::adam_(a[0], a[1], a[2], step, ids_, gradient_, kRate, 0.9, 0.999, 1e-8, 0.01);
  rows::adam_(b[0], b[1], b[2], step, ids_, gradient_, kRate, 0.9, 0.999, 1e-8, 0.01);
  expect_close(a, b);
  EXPECT_FALSE(torch::equal(a[2], tables_[2]));
}

INSTANTIATE_TEST_SUITE_P(Types, ComposedUpdates, testing::Values(at::kFloat, at::kDouble, at::kHalf, at::kBFloat16),
                         [](const auto& type) { return std::string(c10::toString(type.param)); });

TEST(ComposedRowOps, MakeAllRowsThatWouldBeMadeOnDemand) {
  at::Tensor at_once = torch::zeros({5, 3}), on_demand = torch::zeros({5, 3});
  composed::on_demand_(at_once, 2, 0.0, 1.0, 42, 7);
  rows::on_demand_(on_demand, 2, 0.0, 1.0, 42, 7);

  EXPECT_TRUE(torch::equal(at_once, rows::gather(on_demand, torch::arange(5, torch::kLong))));
  EXPECT_NO_THROW(check_rows("test", torch::tensor({4}, torch::kLong), {at_once}));
}

}  // namespace
}  // namespace muster::composed_row_ops_test
