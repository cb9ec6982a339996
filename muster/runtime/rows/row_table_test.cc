#include "muster/runtime/rows/row_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/base/status.h"
#include "muster/runtime/rows/row_ops.h"
#include "muster/runtime/rows/test_huge_table.h"
#include "muster/runtime/variables/variable_store.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

at::Tensor made(std::vector<int64_t> sizes, const RowRule& rule) {
  at::Tensor table = RowTable::zeros({DType::kFloat, std::move(sizes)});
  RowTable::begin(table, rule);
  return table;
}

at::Tensor row_numbers(std::vector<int64_t> ids) { return torch::tensor(ids, torch::kLong); }

TEST(RowTable, LooksTheSameBeforeAndAfterARowIsWritten) {
  const at::Tensor table = made({5, 3}, {.kind = RowRule::kNormal, .a = 1, .b = 2, .seed = 7});

  const at::Tensor before = rows::gather(table, row_numbers({4, 2}));
  RowTable::of(table)->write(2);
  const at::Tensor after = rows::gather(table, row_numbers({4, 2}));

  EXPECT_TRUE(torch::equal(before, after));
  EXPECT_FALSE(torch::equal(before[0], before[1]));
  EXPECT_THAT(RowTable::of(table)->written_rows(), ElementsAre(2));
}

TEST(RowTable, DrawsTheSameRowInEveryPart) {
  const RowRule rule{.kind = RowRule::kUniform, .a = -1, .b = 1, .seed = 3};
  RowRule second = rule;
  second.first_row = 6;
  const at::Tensor whole = made({10, 4}, rule), part = made({4, 4}, second);

  EXPECT_TRUE(torch::equal(rows::gather(whole, row_numbers({6, 9})), rows::gather(part, row_numbers({0, 3}))));
}

TEST(RowTable, DrawsByItsRule) {
  const at::Tensor normal = RowTable::completed(made({2000, 4}, {.kind = RowRule::kNormal, .a = 3, .b = 2, .seed = 1}));
  const at::Tensor uniform = RowTable::completed(made({2000, 4}, {.kind = RowRule::kUniform, .a = -1, .b = 3}));

  EXPECT_NEAR(normal.mean().item<float>(), 3, 0.1);
  EXPECT_NEAR(normal.std().item<float>(), 2, 0.1);
  EXPECT_GE(uniform.min().item<float>(), -1);
  EXPECT_LT(uniform.max().item<float>(), 3);
  EXPECT_NEAR(uniform.mean().item<float>(), 1, 0.1);
  EXPECT_TRUE(torch::equal(RowTable::completed(made({3, 2}, {.kind = RowRule::kConstant, .a = 0.5})),
                           torch::full({3, 2}, 0.5F)));
}

TEST(RowTable, IsUpdatedAsAnOrdinaryTableIs) {
  const RowRule rule{.kind = RowRule::kNormal, .a = 0, .b = 1, .seed = 9};
  at::Tensor table = made({6, 2}, rule), sums = made({6, 2}, {.kind = RowRule::kConstant, .a = 0.1});
  at::Tensor plain = RowTable::completed(table), plain_sums = RowTable::completed(sums);
  const at::Tensor ids = row_numbers({5, 1}), gradient = torch::ones({2, 2});

  for (auto [values, squares] : {std::pair{&table, &sums}, std::pair{&plain, &plain_sums}}) {
    rows::adagrad_(*values, *squares, ids, gradient, torch::scalar_tensor(0.1), 1e-10);
    rows::add_(*values, row_numbers({0}), torch::ones({1, 2}), 0.5);
    rows::scatter_(*values, row_numbers({3, 3}), torch::ones({2, 2}), "sub");
  }

  EXPECT_THAT(RowTable::of(table)->written_rows(), ElementsAre(0, 1, 3, 5));
  EXPECT_TRUE(torch::equal(RowTable::completed(table), plain));
  EXPECT_TRUE(torch::equal(RowTable::completed(sums), plain_sums));
}

TEST(RowTable, TakesMemoryForTheRowsThatAreWrittenOnly) {
  constexpr int64_t kRows = testing_support::kHugeTableRows;
  at::Tensor table = made({kRows, 64}, {.kind = RowRule::kNormal, .b = 1});

  rows::add_(table, row_numbers({0, kRows / 2, kRows - 1}), torch::ones({3, 64}), 1);

  EXPECT_TRUE(RowTable::of(table)->written(kRows - 1));
  EXPECT_FALSE(RowTable::of(table)->written(1));
}

TEST(RowTable, IsCompletedForThoseWhoDoNotLookAtRows) {
  VariableCell cell("table", {DType::kFloat, {4, 2}}, at::kCPU);
  at::Tensor table = made({4, 2}, {.kind = RowRule::kConstant, .a = 2});
  cell.replace(std::move(table));

  const at::Tensor rows = cell.read(/*by_rows=*/true);
  EXPECT_NE(RowTable::of(rows), nullptr);
  at::Tensor memory = cell.begin_write(/*whole=*/false, /*by_rows=*/true);
  rows::add_(memory, row_numbers({1}), torch::ones({1, 2}), 1);
  cell.end_write();

  EXPECT_TRUE(torch::equal(rows::gather(rows, row_numbers({1})), torch::full({1, 2}, 2.0F)))
      << "what a reader holds stays";
  EXPECT_TRUE(torch::equal(cell.read(), torch::tensor({{2.0F, 2.0F}, {3.0F, 3.0F}, {2.0F, 2.0F}, {2.0F, 2.0F}})));
  EXPECT_EQ(RowTable::of(cell.read(/*by_rows=*/true)), nullptr) << "once it is complete, it stays so";
}

TEST(RowTable, IsForgottenWhenTheWholeIsWritten) {
  VariableCell cell("table", {DType::kFloat, {2, 2}}, at::kCPU);
  cell.replace(made({2, 2}, {.kind = RowRule::kConstant, .a = 2}));

  cell.assign(torch::ones({2, 2}));

  EXPECT_TRUE(torch::equal(cell.read(/*by_rows=*/true), torch::ones({2, 2})));
  EXPECT_EQ(RowTable::of(cell.read()), nullptr);
}

TEST(RowTable, NeedsRows) {
  EXPECT_THROW(RowTable::begin(torch::zeros({}), {}), Error);
  EXPECT_THROW(RowTable::begin(torch::zeros({4, 4}).t(), {}), Error);
}

}  // namespace
}  // namespace muster
