#include "muster/runtime/rows/composed_row_ops.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_unique2.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "muster/base/status.h"
#include "muster/runtime/ops/integer_range.h"
#include "muster/runtime/rows/row_checks.h"
#include "muster/runtime/rows/row_ops.h"
#include "muster/runtime/rows/row_table.h"

namespace muster::rows::composed {
namespace {

void check_places(const char* op, const at::Tensor& places, int64_t rows) {
  if (const int64_t most = range_of(places).most; most >= rows) throw out_of_range(op, ": place ", most);
}

at::Tensor one_number(const char* op, const char* what, const at::Tensor& given, const at::Tensor& like) {
  if (given.defined() && given.numel() == 1) return given.reshape({}).to(like.device(), at::kDouble);
  throw invalid_argument(op, ": the ", what, " is ", name_of(given), ", expected one number");
}

// How many of the ids, which rise, are below each start, in the CPU's memory.
at::Tensor below(const at::Tensor& rising, at::IntArrayRef starts) {
  return at::searchsorted(rising, at::tensor(starts, rising.options())).cpu();
}

}  // namespace

void check_rows(const char* op, const at::Tensor& ids, std::initializer_list<at::Tensor> tables) {
  const IntegerRange range = range_of(ids);
  for (const at::Tensor& table : tables) {
    if (range.least >= 0 && range.most < table.size(0)) continue;
    throw out_of_range(op, ": row ", range.least < 0 ? range.least : range.most, " of ", table.size(0));
  }
}

std::tuple<at::Tensor, std::vector<at::Tensor>> unique(const at::Tensor& given, at::IntArrayRef starts) {
  const at::Tensor ids = checked_ids("muster_rows::unique", given);
  check_starts(starts);
  const auto [rising, inverse, counts] = at::_unique2(ids, /*sorted=*/true, /*return_inverse=*/true);
  const at::Tensor ends = below(rising, starts);
  const int64_t* end = ends.data_ptr<int64_t>();  // of no row, and of each part but for its last
  if (end[starts.size() - 1] < rising.numel()) refuse_id(rising[-1].item().toLong(), starts.back());
  std::vector<at::Tensor> lists;
  for (size_t part = 0; part + 1 < starts.size(); ++part) {
    lists.push_back(rising.slice(0, end[part], end[part + 1]) - starts[part]);
  }
  return {(inverse - end[0]).clamp_min_(-1).to(at::kInt), std::move(lists)};
}

std::tuple<std::vector<at::Tensor>, std::vector<at::Tensor>> route(const at::Tensor& given, at::IntArrayRef starts) {
  const at::Tensor ids = checked_ids("muster_rows::route", given);
  check_starts(starts);
  // Stable: within a part they stay in their order.
  const auto [rising, order] = ids.sort(/*stable=*/std::optional(true), /*dim=*/0, /*descending=*/false);
  const at::Tensor ends = below(rising, starts);
  const int64_t* end = ends.data_ptr<int64_t>();
  if (end[0] > 0) refuse_id(rising[0].item().toLong(), starts.back());
  if (end[starts.size() - 1] < ids.numel()) refuse_id(rising[-1].item().toLong(), starts.back());
  std::vector<at::Tensor> lists, from;
  for (size_t part = 0; part + 1 < starts.size(); ++part) {
    from.push_back(std::get<0>(order.slice(0, end[part], end[part + 1]).sort()));
    lists.push_back(ids.index_select(0, from.back()) - starts[part]);
  }
  return {std::move(lists), std::move(from)};
}

at::Tensor gather(const at::Tensor& table, const at::Tensor& given) {
  const at::Tensor ids = checked_ids("muster_rows::gather", given);
  check_table("muster_rows::gather", table);
  check_rows("muster_rows::gather", ids, {table});
  return table.index_select(0, ids);
}

at::Tensor expand(const at::Tensor& given, at::TensorList parts) {
  constexpr const char* kOp = "muster_rows::expand";
  const at::Tensor places = checked_places(kOp, given);
  check_parts(kOp, parts);
  // A row of zeros at the end, for places without one.
  std::vector<int64_t> one = parts[0].sizes().vec();
  one[0] = 1;
  std::vector<at::Tensor> all(parts.begin(), parts.end());
  all.push_back(at::zeros(one, parts[0].options()));
  const at::Tensor rows = at::cat(all);
  const int64_t last = rows.size(0) - 1;
  check_places(kOp, places, last);
  return rows.index_select(0, places.to(at::kLong).masked_fill(places.lt(0), last));
}

std::vector<at::Tensor> sum(const at::Tensor& gradient, const at::Tensor& given, at::TensorList ids) {
  constexpr const char* kOp = "muster_rows::sum";
  const at::Tensor places = checked_places(kOp, given);
  std::vector<int64_t> counts;
  int64_t all = 0;
  for (const at::Tensor& part : ids) {
    counts.push_back(checked_ids(kOp, part).numel());
    all += counts.back();
  }
  check_gradient(kOp, gradient, places);
  check_places(kOp, places, all);
  std::vector<int64_t> sizes = gradient.sizes().vec();
  sizes[0] = all + 1;
  const at::Tensor sums = at::zeros(sizes, gradient.options());
  sums.index_add_(0, places.to(at::kLong).masked_fill(places.lt(0), all), gradient);
  counts.push_back(1);
  std::vector<at::Tensor> parts = sums.split_with_sizes(counts);
  parts.pop_back();
  return parts;
}

void add_(at::Tensor& table, const at::Tensor& given, const at::Tensor& rows, double scale) {
  const at::Tensor ids = checked_ids("muster_rows::add_", given);
  check_pair("muster_rows::add_", table, ids, rows);
  check_rows("muster_rows::add_", ids, {table});
  if (at::isFloatingType(table.scalar_type())) {
    table.index_add_(0, ids, rows, scale);
  } else {
    table.index_add_(0, ids, rows, static_cast<int64_t>(scale));
  }
}

void adagrad_(at::Tensor& table, at::Tensor& sums, const at::Tensor& given, const at::Tensor& gradient,
              const at::Tensor& rate, double epsilon) {
  constexpr const char* kOp = "muster_rows::adagrad_";
  const at::Tensor ids = checked_ids(kOp, given);
  for (const at::Tensor& each : {table, sums}) check_pair(kOp, each, ids, gradient);
  check_rows(kOp, ids, {table, sums});
  const at::Tensor by = one_number(kOp, "rate", rate, table);
  const at::Tensor wide = gradient.to(at::toOpMathType(gradient.scalar_type()));
  const at::Tensor squares = sums.index_select(0, ids).to(wide.scalar_type()).addcmul_(wide, wide);
  const at::Tensor values = table.index_select(0, ids).to(wide.scalar_type());
  sums.index_copy_(0, ids, squares.to(sums.scalar_type()));
  table.index_copy_(0, ids, (values - wide * by / (squares.sqrt() + epsilon)).to(table.scalar_type()));
}

void adam_(at::Tensor& table, at::Tensor& mean, at::Tensor& variance, const at::Tensor& step, const at::Tensor& given,
           const at::Tensor& gradient, const at::Tensor& given_rate, double beta1, double beta2, double epsilon,
           double decay) {
  constexpr const char* kOp = "muster_rows::adam_";
  const at::Tensor ids = checked_ids(kOp, given);
  for (const at::Tensor& each : {table, mean, variance}) check_pair(kOp, each, ids, gradient);
  check_rows(kOp, ids, {table, mean, variance});
  const at::Tensor steps = one_number(kOp, "count of steps", step, table);
  const at::Tensor rate = one_number(kOp, "rate", given_rate, table);
  const at::Tensor correction1 = 1 - at::pow(beta1, steps), correction2 = (1 - at::pow(beta2, steps)).sqrt();
  const auto rows = [&](const at::Tensor& each) { return each.index_select(0, ids).to(at::kDouble); };
  const at::Tensor g = gradient.to(at::kDouble);
  const at::Tensor m = rows(mean).lerp_(g, 1 - beta1);
  const at::Tensor v = rows(variance).mul_(beta2).addcmul_(g, g, 1 - beta2);
  const at::Tensor values =
      rows(table) * (1 - rate * decay) - rate / correction1 * m / (v.sqrt() / correction2 + epsilon);
  mean.index_copy_(0, ids, m.to(mean.scalar_type()));
  variance.index_copy_(0, ids, v.to(variance.scalar_type()));
  table.index_copy_(0, ids, values.to(table.scalar_type()));
}

void on_demand_(at::Tensor& table, int64_t kind, double a, double b, int64_t seed, int64_t first_row) {
  check_table("muster_rows::on_demand_", table);
  at::Tensor rows = at::empty(table.sizes(), table.options().device(at::kCPU));
  rows::on_demand_(rows, kind, a, b, seed, first_row);
  table.copy_(RowTable::completed(rows));
}

TORCH_LIBRARY_IMPL(muster_rows, CUDA, library) {
  library.impl("unique", unique);
  library.impl("route", route);
  library.impl("gather", gather);
  library.impl("expand", expand);
  library.impl("sum", sum);
  library.impl("add_", add_);
  library.impl("adagrad_", adagrad_);
  library.impl("adam_", adam_);
  library.impl("on_demand_", on_demand_);
}

}  // namespace muster::rows::composed
