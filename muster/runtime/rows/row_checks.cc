#include "muster/runtime/rows/row_checks.h"

#include <algorithm>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/rows/row_table.h"

namespace muster::rows {

std::string name_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  return str_cat(spec_of(tensor).to_string(), tensor.is_contiguous() ? "" : " with gaps or overlaps");
}

at::Tensor checked_ids(const char* op, const at::Tensor& ids) {
  if (ids.defined() && ids.scalar_type() == at::kLong && ids.dim() == 1) return ids.contiguous();
  throw invalid_argument(op, ": ids are ", name_of(ids), ", expected int64[n]");
}

at::Tensor checked_places(const char* op, const at::Tensor& places) {
  if (places.defined() && places.scalar_type() == at::kInt && places.dim() == 1) return places.contiguous();
  throw invalid_argument(op, ": places are ", name_of(places), ", expected int32[n]");
}

void check_table(const char* op, const at::Tensor& table) {
  if (!table.defined() || table.dim() == 0 || !table.is_contiguous()) {
    throw invalid_argument(op, ": a table is contiguous and has rows, got ", name_of(table));
  }
  const RowTable* on_demand = RowTable::of(table);
  if (on_demand == nullptr || on_demand->is_whole(table)) return;
  throw invalid_argument(op, ": ", name_of(table),
                         " is a view of a table whose rows are made on demand, which can only be used as a whole");
}

void check_pair(const char* op, const at::Tensor& table, const at::Tensor& ids, const at::Tensor& rows) {
  check_table(op, table);
  if (!rows.defined() || rows.dim() != table.dim() || rows.size(0) != ids.numel() ||
      rows.sizes().slice(1) != table.sizes().slice(1) || rows.scalar_type() != table.scalar_type() ||
      !rows.is_contiguous()) {
    throw invalid_argument(op, ": ", ids.numel(), " rows of ", name_of(table), " cannot take ", name_of(rows));
  }
}

void check_parts(const char* op, at::TensorList rows) {
  if (rows.empty()) throw invalid_argument(op, ": no rows");
  for (const at::Tensor& part : rows) {
    if (part.defined() && part.dim() > 0 && part.is_contiguous() && part.scalar_type() == rows[0].scalar_type() &&
        part.sizes().slice(1) == rows[0].sizes().slice(1)) {
      continue;
    }
    throw invalid_argument(op, ": parts have contiguous rows of one shape and type, got ", name_of(rows[0]), " and ",
                           name_of(part));
  }
}

void check_gradient(const char* op, const at::Tensor& gradient, const at::Tensor& places) {
  if (gradient.defined() && gradient.dim() > 0 && gradient.size(0) == places.numel()) return;
  throw invalid_argument(op, ": ", places.numel(), " places for ", name_of(gradient));
}

void check_starts(at::IntArrayRef starts) {
  if (starts.size() < 2 || starts[0] != 0 || !std::is_sorted(starts.begin(), starts.end())) {
    throw invalid_argument("muster_rows: the first rows of the parts are not in order");
  }
}

[[noreturn]] void refuse_id(int64_t id, int64_t rows) {
  throw out_of_range("id ", id, " of a table with ", rows, " rows, expected below ", rows,
                     " (ids below 0 stand for no row)");
}

}  // namespace muster::rows
