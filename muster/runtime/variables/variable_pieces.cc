#include "muster/runtime/variables/variable_pieces.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "muster/io/checkpoint_index.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/rows/row_ops.h"
#include "muster/runtime/rows/row_table.h"

namespace muster {
namespace {

std::span<const std::byte> bytes_in(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

int64_t bytes_of_a_row(const TensorSpec& spec) {
  const int64_t rows = rows_of(spec.sizes);
  return rows == 0 ? 0 : spec.bytes() / rows;
}

int64_t rows_of_a_piece(const TensorSpec& spec) {
  return std::max<int64_t>(1, VariablePieces::kPieceBytes / std::max<int64_t>(bytes_of_a_row(spec), 1));
}

}  // namespace

// What the last piece is in: one for all variables.
struct VariablePieces::Current {
  at::Tensor value{};
  std::vector<std::byte> bytes{};
  std::vector<int64_t> numbers{};

  void drop() {  // before the next is made, so that there are never two
    value.reset();
    numbers.clear();
  }
};

VariablePieces::VariablePieces() : current_(std::make_shared<Current>()) {}

TensorPieces VariablePieces::all(std::shared_ptr<VariableCell> cell) const {
  return [current = current_, cell = std::move(cell)](int64_t offset) -> std::span<const std::byte> {
    const TensorSpec& spec = cell->spec();
    PlainTensors plain;
    current->drop();
    if (spec.bytes() <= kAtOnce) {
      current->value = cell->read().to(at::kCPU).contiguous();
      return bytes_in(current->value).subspan(static_cast<size_t>(offset));
    }
    const int64_t row_bytes = bytes_of_a_row(spec), first = offset / row_bytes;
    const int64_t count = std::min(rows_of_a_piece(spec), rows_of(spec.sizes) - first);
    const BriefRead held(*cell, /*by_rows=*/false);
    const at::Tensor rows = held.value.narrow(0, first, count);
    if (!rows.is_cpu()) {
      current->value = rows.to(at::kCPU).contiguous();
      return bytes_in(current->value);
    }
    current->bytes.resize(static_cast<size_t>(std::max(kPieceBytes, row_bytes)));
    const auto from = bytes_in(rows);
    std::memcpy(current->bytes.data(), from.data(), from.size());
    return std::span<const std::byte>(current->bytes).first(from.size());
  };
}

TensorPieces VariablePieces::rows(std::shared_ptr<VariableCell> cell, std::shared_ptr<const RowSet> set) const {
  return [current = current_, cell = std::move(cell), set = std::move(set),
          next = int64_t{0}](int64_t offset) mutable -> std::span<const std::byte> {
    PlainTensors plain;
    current->drop();
    std::tie(current->numbers, next) = set->take(offset == 0 ? 0 : next, rows_of_a_piece(cell->spec()));
    at::Tensor ids = at::from_blob(current->numbers.data(), {static_cast<int64_t>(current->numbers.size())},
                                   at::TensorOptions(at::kLong));
    const BriefRead held(*cell, /*by_rows=*/true);
    current->value = rows::gather(held.value, ids);
    return bytes_in(current->value);
  };
}

TensorPieces VariablePieces::numbers(std::shared_ptr<const RowSet> set, int64_t first_row) const {
  return [current = current_, set = std::move(set), first_row,
          next = int64_t{0}](int64_t offset) mutable -> std::span<const std::byte> {
    current->drop();
    std::tie(current->numbers, next) =
        set->take(offset == 0 ? 0 : next, kPieceBytes / static_cast<int64_t>(sizeof(int64_t)));
    for (int64_t& row : current->numbers) row += first_row;
    return std::as_bytes(std::span(current->numbers));
  };
}

std::shared_ptr<const RowSet> written_rows(VariableCell& cell) {
  constexpr int64_t kAtOnce = 4 << 20;  // rows that are looked at while writers wait
  const int64_t rows = rows_of(cell.spec().sizes);
  auto written = std::make_shared<RowSet>(rows);
  for (int64_t first = 0; first < rows; first += kAtOnce) {
    const BriefRead held(cell, /*by_rows=*/true);
    const RowTable* table = RowTable::of(held.value);
    for (int64_t row = first; row < std::min(rows, first + kAtOnce); ++row) {
      if (table == nullptr || table->written(row)) written->add(row);
    }
  }
  return written;
}

}  // namespace muster
