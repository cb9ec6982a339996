#include "muster/runtime/variables/variable_pieces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstring>

#include "muster/runtime/rows/row_table.h"

namespace muster::variable_pieces_test {
namespace {

using ::testing::ElementsAre;

constexpr int64_t kWidth = 1 << 16;  // a quarter of a MiB a row
constexpr int64_t kRowsOfAPiece = VariablePieces::kPieceBytes / (4 * kWidth);
constexpr int64_t kRowsAtOnce = VariablePieces::kAtOnce / (4 * kWidth);

std::shared_ptr<VariableCell> cell_of(const at::Tensor& value) {
  auto cell = std::make_shared<VariableCell>("w", TensorSpec{DType::kFloat, value.sizes().vec()}, at::Device(at::kCPU));
  cell->assign(value);
  return cell;
}

float first_of(std::span<const std::byte> bytes) {
  float number = 0;
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

const void* memory_of(VariableCell& cell) {
  const at::Tensor target = cell.begin_write();
  const void* memory = target.const_data_ptr();
  cell.end_write();
  return memory;
}

TEST(VariablePieces, OfALargeVariableLetWritersWorkInPlace) {
  const auto cell = cell_of(torch::zeros({kRowsAtOnce + 1, kWidth}));
  const void* memory = memory_of(*cell);
  const TensorPieces pieces = VariablePieces().all(cell);

  const auto first = pieces(0);
  EXPECT_EQ(memory_of(*cell), memory);
  cell->begin_write().fill_(1);
  cell->end_write();
  const float before = first_of(first);
  const auto second = pieces(static_cast<int64_t>(first.size()));

  EXPECT_EQ(before, 0);
  EXPECT_EQ(first_of(second), 1);
  EXPECT_EQ(first.size(), static_cast<size_t>(VariablePieces::kPieceBytes));
  EXPECT_EQ(pieces(4 * kWidth * kRowsAtOnce).size(), static_cast<size_t>(4 * kWidth));
}

TEST(VariablePieces, OfASmallVariableAreAsItWasAtOneMoment) {
  const auto cell = cell_of(torch::zeros({kRowsAtOnce, kWidth}));
  const TensorPieces pieces = VariablePieces().all(cell);

  const auto all = pieces(0);
  cell->begin_write().fill_(1);
  cell->end_write();

  EXPECT_EQ(all.size(), static_cast<size_t>(VariablePieces::kAtOnce));
  EXPECT_EQ(first_of(all), 0);
  EXPECT_EQ(first_of(all.last(4)), 0);
}

TEST(VariablePieces, OfRowsOnDemandAreThoseThatWereWrittenWithTheirNumbers) {
  auto cell = std::make_shared<VariableCell>("t", TensorSpec{DType::kFloat, {100, 2}}, at::Device(at::kCPU));
  at::Tensor table = RowTable::zeros(cell->spec());
  RowTable::begin(table, {.kind = RowRule::kConstant, .a = 7});
  for (int64_t row : {3, 64, 99}) RowTable::of(table)->write(row);
  cell->replace(table);
  table.reset();

  const auto written = written_rows(*cell);
  const VariablePieces pieces;
  const auto numbers = pieces.numbers(written, 1000)(0);
  std::vector<int64_t> found(numbers.size() / 8);
  std::memcpy(found.data(), numbers.data(), numbers.size());
  const auto rows = pieces.rows(cell, written)(0);

  EXPECT_THAT(found, ElementsAre(1003, 1064, 1099));
  EXPECT_EQ(rows.size(), 3 * 2 * sizeof(float));
  EXPECT_EQ(first_of(rows), 7);
}

TEST(RowSet, KnowsItsRowsInTheirOrder) {
  RowSet set(130);
  for (int64_t row : {129, 0, 64, 63}) set.add(row);

  const auto [first, next] = set.take(0, 3);

  EXPECT_THAT(first, ElementsAre(0, 63, 64));
  EXPECT_THAT(set.take(next, 3).first, ElementsAre(129));
  EXPECT_EQ(set.count(), 4);
  EXPECT_EQ(set.next(130), 130);
  EXPECT_TRUE(set.has(63));
  EXPECT_FALSE(set.has(62));
}

}  // namespace
}  // namespace muster::variable_pieces_test
