#include "muster/runtime/rows/changed_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "muster/runtime/rows/row_ops.h"
#include "muster/runtime/rows/row_table.h"
#include "muster/runtime/variables/variable_store.h"

namespace muster::changed_rows_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int64_t> rows_in(const std::optional<ChangedRows::Since>& since) {
  return since ? since->rows.take(0, since->rows.rows()).first : std::vector<int64_t>{-1};
}

// A table of 8 rows of one number, and who saves it.
class ChangedRowsOfACell : public ::testing::Test {
 protected:
  void begin_on_demand() {
    at::Tensor table = RowTable::zeros(cell_.spec());
    RowTable::begin(table, {.kind = RowRule::kConstant, .a = 1});
    cell_.replace(table);
  }
  // What has changed since the save before; then what is saved now is known.
  std::optional<ChangedRows::Since> save(uint64_t base, uint64_t mark, uint64_t owner = 1) {
    return cell_.changed_rows()->begin_save(owner, base, mark);
  }
  void write_rows(const std::function<void(at::Tensor&)>& write) {
    at::Tensor table = cell_.begin_write(/*whole=*/false, /*by_rows=*/true);
    write(table);
    table.reset();
    cell_.end_write();
  }
  void add_to(const std::vector<int64_t>& ids) {
    write_rows([&](at::Tensor& table) {
      rows::add_(table, torch::tensor(ids), torch::ones({static_cast<int64_t>(ids.size()), 1}), 1);
    });
  }

  VariableCell cell_{"table", {DType::kFloat, {8, 1}}, at::kCPU};
};

TEST_F(ChangedRowsOfACell, AreThoseThatRowOpsWriteSinceTheSaveThatIsTheBase) {
  for (const bool on_demand : {false, true}) {
    cell_.assign(torch::zeros({8, 1}));
    if (on_demand) begin_on_demand();
    EXPECT_FALSE(save(0, 1));
    EXPECT_THAT(rows_in(save(1, 2)), IsEmpty());

    add_to({3, 5});
    write_rows([](at::Tensor& table) {
      at::Tensor sums = torch::zeros({8, 1});
      const at::Tensor one = torch::tensor({int64_t{7}});
      rows::adagrad_(table, sums, one, torch::ones({1, 1}), torch::tensor(0.1), 1e-7);
      rows::adam_(table, sums, sums, torch::tensor(1.0), one - 1, torch::ones({1, 1}), torch::tensor(0.1), 0.9, 0.99,
                  1e-7, 0);
      rows::scatter_(table, one - 7, torch::ones({1, 1}), "update");
    });

    const auto since = save(2, 3);
    EXPECT_THAT(rows_in(since), ElementsAre(0, 3, 5, 6, 7)) << on_demand;
    EXPECT_FALSE(since->all);
    add_to({1});
    EXPECT_THAT(rows_in(save(3, 4)), ElementsAre(1));
    EXPECT_THAT(rows_in(save(3, 5)), ElementsAre(1)) << "the one before was not made after all";
  }
}

TEST_F(ChangedRowsOfACell, AreKnownWhateverMemoryTheTableHas) {
  cell_.assign(torch::zeros({8, 1}));
  save(0, 1);
  add_to({2});
  const at::Tensor held = cell_.read();  // the next write makes a copy
  add_to({4});

  EXPECT_THAT(rows_in(save(1, 2)), ElementsAre(2, 4));
  EXPECT_EQ(held[4].item<float>(), 0);
}

TEST_F(ChangedRowsOfACell, AreAllAfterAnyOtherWrite) {
  cell_.assign(torch::zeros({8, 1}));
  uint64_t mark = 1;
  save(0, mark);
  const auto expect_all_after = [&](const char* what, const std::function<void()>& write) {
    write();
    const auto since = save(mark, mark + 1);
    ++mark;
    ASSERT_TRUE(since);
    EXPECT_TRUE(since->all) << what;
  };

  expect_all_after("assign", [&] { cell_.assign(torch::ones({8, 1})); });
  expect_all_after("replace", [&] { cell_.replace(torch::ones({8, 1})); });
  expect_all_after("a dense write", [&] {
    (void)cell_.begin_write();
    cell_.end_write();
  });
  expect_all_after("a dense write that fails", [&] {
    (void)cell_.begin_write(/*whole=*/true);
    cell_.end_write(/*keep=*/false);
  });
  expect_all_after("another rule", [&] {
    write_rows([](at::Tensor& table) { rows::on_demand_(table, RowRule::kConstant, 2, 0, 0, 0); });
  });
  add_to({3});
  EXPECT_THAT(rows_in(save(mark, mark + 1)), ElementsAre(3));
}

TEST_F(ChangedRowsOfACell, AreRememberedForEachOfAFewWhoSave) {
  cell_.assign(torch::zeros({8, 1}));
  save(0, 1, /*owner=*/1);
  add_to({1});
  save(0, 1, /*owner=*/2);
  add_to({2});

  EXPECT_THAT(rows_in(save(1, 2, /*owner=*/2)), ElementsAre(2));
  EXPECT_THAT(rows_in(save(1, 2, /*owner=*/1)), ElementsAre(1, 2));
  for (uint64_t owner = 3; owner < 3 + ChangedRows::kMost; ++owner) save(0, 1, owner);
  EXPECT_FALSE(save(2, 3, /*owner=*/1)) << "it is not remembered for everybody";
}

}  // namespace
}  // namespace muster::changed_rows_test
