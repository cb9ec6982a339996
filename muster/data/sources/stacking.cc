#include "muster/data/sources/stacking.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "muster/base/status.h"
#include "muster/data/dataset_node.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

bool is_alike(const Column& one, const Column& other, bool padded) {
  if (one.holds_strings() != other.holds_strings()) return false;
  if (padded ? one.sizes().size() != other.sizes().size() : one.sizes() != other.sizes()) return false;
  return one.holds_strings() || one.tensor().scalar_type() == other.tensor().scalar_type();
}

void check_rows(std::span<const Columns> rows, const char* step, bool padded) {
  for (size_t row = 1; row < rows.size(); ++row) {
    bool same = rows[row].size() == rows[0].size();
    for (size_t column = 0; same && column < rows[0].size(); ++column) {
      same = is_alike(rows[row][column], rows[0][column], padded);
    }
    if (same) continue;
    throw invalid_argument(step, ": element ", row, " of a batch is ", describe(rows[row]), ", but the first one is ",
                           describe(rows[0]), "; expected elements of one ",
                           padded
                               ? "number of dimensions and type"
                               : "shape and type, which a map before it can make; padded_batch fills up smaller ones");
  }
}

// The number of rows, and for each dimension the most that one has.
std::vector<int64_t> sizes_of_stack(std::span<const Columns> rows, size_t column) {
  std::vector<int64_t> sizes{static_cast<int64_t>(rows.size())};
  const at::IntArrayRef first = rows[0][column].sizes();
  sizes.insert(sizes.end(), first.begin(), first.end());
  for (const Columns& row : rows) {
    const at::IntArrayRef of_row = row[column].sizes();
    for (size_t i = 0; i < of_row.size(); ++i) sizes[i + 1] = std::max(sizes[i + 1], of_row[i]);
  }
  return sizes;
}

bool can_hold(at::ScalarType type, double value) {
  if (!at::isIntegralType(type, /*includeBool=*/true)) return true;
  if (type == at::kBool) return value == 0 || value == 1;
  const bool has_sign = at::isSignedType(type);
  const int bits = static_cast<int>(8 * c10::elementSize(type)) - (has_sign ? 1 : 0);
  return value == std::trunc(value) && value < std::ldexp(1, bits) && value >= (has_sign ? -std::ldexp(1, bits) : 0);
}

void check_padding(const Columns& row, const char* step, double padding) {
  for (const Column& column : row) {
    if (column.holds_strings() || can_hold(column.tensor().scalar_type(), padding)) continue;
    throw invalid_argument(step, ": the padding ", padding, " is no value of ", column.to_string(),
                           ", expected one that all columns can hold");
  }
}

// The strings of a row at their places in a larger one of these sizes, "" around them.
void append_padded(Strings& all, const Strings& row, at::IntArrayRef sizes, size_t dimension, size_t& next,
                   bool inside) {
  if (dimension == sizes.size()) {
    all.append(inside ? row[next++] : std::string_view());
    return;
  }
  for (int64_t i = 0; i < sizes[dimension]; ++i) {
    append_padded(all, row, sizes, dimension + 1, next, inside && i < row.sizes()[dimension]);
  }
}

Strings stacked_strings(std::span<const Columns> rows, size_t column, std::vector<int64_t> sizes) {
  size_t count = 1, bytes = 0;
  for (const int64_t size : sizes) count *= static_cast<size_t>(size);
  for (const Columns& row : rows) bytes += row[column].strings().bytes();
  Strings all;
  all.reserve(count, bytes);
  const at::IntArrayRef of_row = at::IntArrayRef(sizes).slice(1);
  for (const Columns& row : rows) {
    const Strings& strings = row[column].strings();
    if (strings.sizes() == of_row) {
      all.append_all(strings);
    } else {
      size_t next = 0;
      append_padded(all, strings, of_row, 0, next, true);
    }
  }
  all.shape(std::move(sizes));
  return all;
}

at::Tensor stacked_tensors(std::span<const Columns> rows, size_t column, const std::vector<int64_t>& sizes,
                           std::optional<double> padding) {
  const at::Tensor& first = rows[0][column].tensor();
  const at::IntArrayRef of_row = at::IntArrayRef(sizes).slice(1);
  const bool all_as_large =
      std::ranges::all_of(rows, [&](const Columns& row) { return row[column].sizes() == of_row; });
  at::Tensor whole = all_as_large ? at::empty(sizes, first.options()) : at::full(sizes, *padding, first.options());
  const size_t bytes = all_as_large ? first.nbytes() : 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    const at::Tensor& from = rows[row][column].tensor();
    if (from.numel() == 0) continue;
    if (all_as_large && whole.is_cpu() && from.is_cpu() && from.is_contiguous() && !from.is_conj() && !from.is_neg()) {
      std::memcpy(static_cast<char*>(whole.mutable_data_ptr()) + row * bytes, from.const_data_ptr(), bytes);
      continue;
    }
    at::Tensor place = whole.select(0, static_cast<int64_t>(row));
    for (int64_t i = 0; i < from.dim(); ++i) place = place.narrow(i, 0, from.size(i));
    place.copy_(from);
  }
  return whole;
}

}  // namespace

Columns stacked(std::span<const Columns> rows, const char* step, std::optional<double> padding) {
  check_rows(rows, step, padding.has_value());
  if (padding) check_padding(rows[0], step, *padding);
  PlainTensors plain;
  MemoryPool::Use pool(true);
  Columns batch;
  for (size_t column = 0; column < rows[0].size(); ++column) {
    std::vector<int64_t> sizes = sizes_of_stack(rows, column);
    if (rows[0][column].holds_strings()) {
      batch.emplace_back(stacked_strings(rows, column, std::move(sizes)));
    } else {
      batch.emplace_back(stacked_tensors(rows, column, sizes, padding));
    }
  }
  return batch;
}

Columns joined(std::span<const Columns> batches) {
  if (batches.size() == 1) return batches[0];
  PlainTensors plain;
  const MemoryPool::Use pool(true);
  Columns all;
  for (size_t column = 0; column < batches[0].size(); ++column) {
    if (batches[0][column].holds_strings()) {
      Strings strings;
      for (const Columns& batch : batches) strings.append_all(batch[column].strings());
      all.emplace_back(std::move(strings));
    } else {
      std::vector<at::Tensor> tensors;
      for (const Columns& batch : batches) tensors.push_back(batch[column].tensor());
      all.emplace_back(at::cat(tensors));
    }
  }
  return all;
}

Column row_of(const Column& column, int64_t row) {
  if (!column.holds_strings()) return column.tensor().select(0, row);
  const Strings& strings = column.strings();
  const size_t count = strings.count() / static_cast<size_t>(std::max<int64_t>(strings.sizes()[0], 1));
  const size_t first = static_cast<size_t>(row) * count;
  if (strings.sizes().size() == 1) return Strings(std::string(strings[first]), strings.origin(first));
  Strings some;
  for (size_t i = first; i < first + count; ++i) some.append(strings[i]);
  some.shape({strings.sizes().begin() + 1, strings.sizes().end()});
  return some;
}

}  // namespace muster
