#include "muster/trace/rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/status.h"
#include "muster/trace/function.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

TEST(Rows, AreChangedOneAfterTheOther) {
  Variable v(torch::ones({4, 2}));
  auto add = function([&](at::Tensor ids, at::Tensor rows) { scatter(v, Scatter::kAdd, ids, rows); });

  add(torch::tensor({1, 3, 1}), torch::full({3, 2}, 2.0F));

  EXPECT_TRUE(torch::equal(v.value(), torch::tensor({{1.0F, 1.0F}, {5.0F, 5.0F}, {1.0F, 1.0F}, {3.0F, 3.0F}})));
}

TEST(Rows, OfRowsAreReplaced) {
  Variable v(torch::zeros({2, 3, 2}));
  auto update = function([&](at::Tensor ids, at::Tensor rows) { batch_scatter_update(v, ids, rows); });
  const at::Tensor rows = torch::arange(1, 9, torch::kFloat).reshape({2, 2, 2});

  update(torch::tensor({{2, 0}, {1, 2}}), rows);

  at::Tensor expected = torch::zeros({2, 3, 2});
  expected[0][2] = rows[0][0];
  expected[0][0] = rows[0][1];
  expected[1][1] = rows[1][0];
  expected[1][2] = rows[1][1];
  EXPECT_TRUE(torch::equal(v.value(), expected));
}

TEST(Rows, OfRowsWithOneDimensionAreRows) {
  Variable v(torch::zeros({3}));
  auto update = function([&](at::Tensor ids, at::Tensor rows) { batch_scatter_update(v, ids, rows); });

  update(torch::tensor({2, 0}), torch::tensor({5.0F, 6.0F}));

  EXPECT_TRUE(torch::equal(v.value(), torch::tensor({6.0F, 0.0F, 5.0F})));
}

TEST(Rows, MustFit) {
  Variable v(torch::zeros({2, 3}), {.name = "v"});
  auto update = function([&](at::Tensor ids, at::Tensor rows) { batch_scatter_update(v, ids, rows); });
  auto add = function([&](at::Tensor ids, at::Tensor rows) { scatter(v, Scatter::kAdd, ids, rows); });

  EXPECT_THAT(refusal_of([&] { update(torch::tensor({{0}, {1}, {2}}), torch::ones({3, 1})); }), HasSubstr("\"v\""));
  EXPECT_THAT(refusal_of([&] { update(torch::tensor({{0}, {1}}), torch::ones({2, 2})); }), HasSubstr("float32[2, 2]"));
  EXPECT_THAT(refusal_of([&] { add(torch::tensor({0}), torch::ones({1, 2})); }), HasSubstr("float32[1, 2]"));
}

}  // namespace
}  // namespace muster
