#include "muster/trace/rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "muster/base/status.h"
#include "muster/runtime/row_ops.h"
#include "muster/runtime/tensors.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/tracer.h"

namespace muster {
namespace {

using Parts = std::vector<at::Tensor>;

std::vector<Variable> parts_of(const Variable& table) {
  return table.shards().empty() ? std::vector<Variable>{table} : table.shards();
}

std::vector<int64_t> starts_of(const Variable& table) {
  std::vector<int64_t> starts{0};
  for (const Variable& part : parts_of(table)) starts.push_back(starts.back() + part.sizes()[0]);
  return starts;
}

Tracer& tracer_for(const char* what, const Variable& table) {
  Tracer* tracer = Tracer::current();
  if (tracer == nullptr) {
    throw failed_precondition(what, " of variable \"", table.name(),
                              "\" belongs inside a traced function (muster::function)");
  }
  if (table.sizes().empty()) {
    throw invalid_argument(what, ": variable \"", table.name(), "\" is a scalar, which has no rows");
  }
  return *tracer;
}

}  // namespace

at::Tensor lookup(const Variable& table, const at::Tensor& ids) {
  Tracer& tracer = tracer_for("lookup", table);
  if (ids.scalar_type() != at::kLong) {
    throw invalid_argument("lookup: the ids for variable \"", table.name(), "\" are ", spec_of(ids).to_string(),
                           ", expected int64");
  }
  c10::AutoGradMode no_gradients(false);
  const at::Tensor flat = ids.reshape({-1});
  auto [places, part_ids] = rows::unique(flat, starts_of(table));
  Parts gathered;
  const std::vector<Variable> parts = parts_of(table);
  for (size_t i = 0; i < parts.size(); ++i) {
    DeviceScope there(parts[i].device());
    gathered.push_back(rows::gather(parts[i].memory(), part_ids[i]));
  }
  at::Tensor leaf = rows::expand(places, gathered);
  if (table.trainable() && leaf.is_floating_point()) {
    leaf.requires_grad_();
    tracer.lookups.push_back({table.state(), flat, places, part_ids, leaf});
  }
  std::vector<int64_t> sizes = ids.sizes().vec();
  sizes.insert(sizes.end(), table.sizes().begin() + 1, table.sizes().end());
  c10::AutoGradMode gradients(true);
  return leaf.reshape(sizes);
}

Gradients gradients_by_rows(const at::Tensor& loss, const std::vector<Variable>& variables) {
  Tracer* tracer = Tracer::current();
  if (tracer == nullptr) return {gradient(loss, variables), {}};  // which says that it belongs inside a function
  std::vector<Variable> dense;
  std::vector<at::Tensor> leaves;
  std::vector<std::vector<const RowLookup*>> lookups;
  for (const Variable& variable : variables) {
    std::vector<const RowLookup*>& of_this = lookups.emplace_back();
    for (const RowLookup& lookup : tracer->lookups) {
      if (lookup.table != variable.state()) continue;
      of_this.push_back(&lookup);
      leaves.push_back(lookup.leaf);
    }
    if (of_this.empty()) dense.push_back(variable);
  }
  std::vector<at::Tensor> by_leaf;
  if (!leaves.empty()) {
    by_leaf = torch::autograd::grad({loss}, leaves, /*grad_outputs=*/{}, /*retain_graph=*/true,
                                    /*create_graph=*/false, /*allow_unused=*/true);
  }
  std::vector<at::Tensor> by_dense;
  if (!dense.empty()) by_dense = gradient(loss, dense);
  c10::AutoGradMode no_gradients(false);
  Gradients result;
  size_t next_leaf = 0, next_dense = 0;
  for (size_t i = 0; i < variables.size(); ++i) {
    if (lookups[i].empty()) {
      result.dense.push_back(by_dense[next_dense++]);
      continue;
    }
    result.dense.emplace_back();
    at::Tensor places = lookups[i][0]->places;
    Parts ids = lookups[i][0]->part_ids, all_ids, all_rows;
    for (const RowLookup* lookup : lookups[i]) {
      const at::Tensor& found = by_leaf[next_leaf++];
      all_rows.push_back(found.defined() ? found : at::zeros_like(lookup->leaf));
      all_ids.push_back(lookup->ids);
    }
    at::Tensor by_row = all_rows[0];
    if (lookups[i].size() > 1) {  // a row that two lookups have seen is one row
      std::tie(places, ids) = rows::unique(at::cat(all_ids), starts_of(variables[i]));
      by_row = at::cat(all_rows);
    }
    Parts sums = rows::sum(by_row, places, ids);
    result.rows.push_back({variables[i], std::move(ids), std::move(sums)});
  }
  return result;
}

namespace {

const char* name_of(Scatter how) {
  switch (how) {
    case Scatter::kAdd: return "add";
    case Scatter::kSub: return "sub";
    case Scatter::kMul: return "mul";
    case Scatter::kDiv: return "div";
    case Scatter::kMin: return "min";
    case Scatter::kMax: return "max";
    case Scatter::kUpdate: return "update";
  }
  return "";
}

// Rows that several replicas change would change in an order that nobody has asked for.
void refuse_replicas(const char* what, const Variable& variable) {
  const ReplicaContext* replica = ReplicaContext::current();
  if (replica == nullptr || replica->num_replicas() == 1) return;
  throw failed_precondition(what, " of variable \"", variable.name(), "\" in each of ", replica->num_replicas(),
                            " replicas; let strategy.run() return ids and rows, and scatter them after it");
}

}  // namespace

void scatter(const Variable& variable, Scatter how, const at::Tensor& ids, const at::Tensor& updates) {
  tracer_for("scatter", variable);
  refuse_replicas("scatter", variable);
  std::vector<int64_t> expected = ids.sizes().vec();
  expected.insert(expected.end(), variable.sizes().begin() + 1, variable.sizes().end());
  if (ids.scalar_type() != at::kLong || updates.sizes() != at::IntArrayRef(expected) ||
      updates.scalar_type() != variable.dtype()) {
    throw invalid_argument("scatter: variable \"", variable.name(), "\" (", variable.state()->spec.to_string(),
                           ") takes int64 ids and one row for each, got ", spec_of(ids).to_string(), " and ",
                           spec_of(updates).to_string());
  }
  c10::AutoGradMode no_gradients(false);
  auto [part_ids, positions] = rows::route(ids.reshape({-1}), starts_of(variable));
  std::vector<int64_t> row_sizes = variable.sizes().vec();
  row_sizes[0] = -1;
  const at::Tensor by_row = updates.reshape(row_sizes);
  const std::vector<Variable> parts = parts_of(variable);
  for (size_t i = 0; i < parts.size(); ++i) {
    const at::Tensor mine = at::index_select(by_row, 0, positions[i]);
    DeviceScope there(parts[i].device());
    at::Tensor memory = parts[i].memory();
    rows::scatter_(memory, part_ids[i], mine, name_of(how));
  }
}

void batch_scatter_update(const Variable& variable, const at::Tensor& ids, const at::Tensor& updates) {
  tracer_for("batch_scatter_update", variable);
  refuse_replicas("batch_scatter_update", variable);
  if (ids.dim() == 1) return scatter(variable, Scatter::kUpdate, ids, updates);
  const int64_t batch = ids.dim() - 1;
  const auto dims = static_cast<int64_t>(variable.sizes().size());
  bool fits = batch > 0 && batch < dims && ids.scalar_type() == at::kLong && updates.scalar_type() == variable.dtype();
  std::vector<int64_t> expected = ids.sizes().vec();
  if (fits) {
    fits = ids.sizes().slice(0, batch) == variable.sizes().slice(0, batch);
    expected.insert(expected.end(), variable.sizes().begin() + batch + 1, variable.sizes().end());
  }
  if (!fits || updates.sizes() != at::IntArrayRef(expected)) {
    throw invalid_argument(
        "batch_scatter_update: variable \"", variable.name(), "\" (", variable.state()->spec.to_string(),
        ") takes int64 ids, whose dimensions but the last are the first of the variable, and one row "
        "for each, got ",
        spec_of(ids).to_string(), " and ", spec_of(updates).to_string());
  }
  c10::AutoGradMode no_gradients(false);
  std::vector<int64_t> each = ids.sizes().vec();
  each.resize(static_cast<size_t>(dims), 1);
  const at::Tensor places = ids.reshape(each).expand(expected);
  int64_t first = 0;
  for (const Variable& part : parts_of(variable)) {
    const int64_t count = part.sizes()[0];
    const at::Tensor own_places = places.narrow(0, first, count), own = updates.narrow(0, first, count);
    first += count;
    DeviceScope there(part.device());
    part.memory().scatter_(batch, own_places, own);
  }
}

}  // namespace muster
