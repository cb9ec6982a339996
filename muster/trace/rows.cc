#include "muster/trace/rows.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <tuple>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/rows/row_ops.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/tracer/tracer.h"

namespace muster {
namespace {

using Parts = std::vector<at::Tensor>;

std::vector<Variable> parts_of(const Variable& table) {
  return table.shards().empty() ? std::vector<Variable>{table.copy_here()} : table.shards();
}

std::vector<int64_t> starts_of(const Variable& table) {
  std::vector<int64_t> starts{0};
  for (const Variable& part : parts_of(table)) starts.push_back(starts.back() + part.sizes()[0]);
  return starts;
}

// The trace runs with the values of the first call, so an id that does not fit may be seen here, and not in a run.
std::tuple<at::Tensor, Parts> unique_in(const Variable& table, const at::Tensor& ids) {
  try {
    return rows::unique(ids, starts_of(table));
  } catch (const Error& error) {
    throw Error(Status(error.code(), str_cat("variable \"", table.name(), "\": ", error.status().message())));
  }
}

at::Tensor zeros_for(const Variable& variable) {
  return at::zeros(variable.sizes(), at::TensorOptions(variable.dtype()));
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
  if (table.state()->is_put_together() && ReplicaContext::current() == nullptr) {
    throw failed_precondition(what, ": each replica has rows of its own of variable \"", table.name(),
                              "\" (Synchronization::kOnRead); outside of replicas take those of its value(), and "
                              "assign() it as a whole");
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
  auto [places, part_ids] = unique_in(table, flat);
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

at::Tensor slice(const Variable& variable, const RowRange& range) {
  if (variable.sizes().empty()) {
    throw invalid_argument("slice: variable \"", variable.name(), "\" is a scalar, which has no rows");
  }
  if (range.step == 0) throw invalid_argument("slice of variable \"", variable.name(), "\": slice step cannot be zero");
  const int64_t rows = variable.sizes()[0];
  const bool backwards = range.step < 0;
  // Between what there is before the first row and after the last one, as far as the direction can come there.
  auto bounded = [&](std::optional<int64_t> index, int64_t otherwise) {
    if (!index) return otherwise;
    const int64_t from_start = *index < 0 ? *index + rows : *index;
    return backwards ? std::clamp<int64_t>(from_start, -1, rows - 1) : std::clamp<int64_t>(from_start, 0, rows);
  };
  int64_t first = bounded(range.first, backwards ? rows - 1 : 0), end = bounded(range.end, backwards ? -1 : rows);
  const int64_t longest = std::max<int64_t>(rows, 1);  // a longer step goes just as far
  const int64_t step = std::abs(std::clamp(range.step, -longest, longest));
  if (backwards) {  // the same rows forwards, and then turned round
    const int64_t last = first;
    first = last > end ? last - (last - end - 1) / step * step : 0;
    end = last > end ? last + 1 : 0;
  }
  Parts found;
  int64_t start = 0;
  const bool is_one = !variable.state()->is_put_together() || ReplicaContext::current() != nullptr;
  if (!is_one) found.push_back(variable.value().slice(0, first, end, step));  // no copy has what all are together
  for (const Variable& part : is_one ? parts_of(variable) : std::vector<Variable>()) {
    const int64_t here = start, count = part.sizes()[0];
    start += count;
    const int64_t begin = first >= here ? first : first + (here - first + step - 1) / step * step;
    if (begin >= std::min(end, start)) continue;
    DeviceScope there(part.device());
    found.push_back(part.value().slice(0, begin - here, std::min(end, start) - here, step));
  }
  if (found.empty()) {
    std::vector<int64_t> sizes = variable.sizes().vec();
    sizes[0] = 0;
    return at::zeros(sizes, at::TensorOptions(variable.dtype()));
  }
  const at::Tensor forwards = found.size() == 1 ? found[0] : at::cat(found);
  return backwards ? forwards.flip(0) : forwards;
}

at::Tensor row(const Variable& variable, int64_t index) {
  const int64_t rows = variable.sizes().empty() ? 0 : variable.sizes()[0];
  if (index < -rows || index >= rows) {
    throw out_of_range("row ", index, " of variable \"", variable.name(), "\" (", variable.state()->spec.to_string(),
                       "), which has ", rows, " rows");
  }
  const int64_t from_start = index < 0 ? index + rows : index;
  return slice(variable, {.first = from_start, .end = from_start + 1}).select(0, 0);
}

namespace {

// d loss / d one variable, by the ways on which the loss depends on it.
struct FoundGradient {
  at::Tensor whole{};  // undefined: not as a whole
  std::optional<RowGradient> rows{};
};

void check_differentiable(const Variable& variable, const at::Tensor& stand_in) {
  if (variable.trainable() && at::isFloatingType(variable.dtype()) &&
      (!stand_in.defined() || stand_in.requires_grad())) {
    return;
  }
  throw invalid_argument("gradient: variable \"", variable.name(), "\" (", variable.state()->spec.to_string(),
                         ") is not trainable or not of a floating-point type; a module is frozen, by "
                         "requires_grad_(false), before it is compiled or adopted");
}

// The row of `variable` that is row 0 of what was looked up: the variable itself, one of its parts, or what it is a
// part of. Nothing if they are strangers.
std::optional<int64_t> first_row_in(const Variable& variable, const RowLookup& lookup) {
  if (lookup.table == variable.state()) return 0;
  auto first_row = [](const Variable::State& whole, const Variable::State* part) -> std::optional<int64_t> {
    int64_t first = 0;
    for (const Variable& shard : whole.shards) {
      if (shard.state().get() == part) return first;
      first += shard.sizes()[0];
    }
    return std::nullopt;
  };
  if (const auto first = first_row(*variable.state(), lookup.table.get())) return *first;
  if (const auto first = first_row(*lookup.table, variable.state().get())) return -*first;
  return std::nullopt;
}

// The ids of a lookup as rows of `variable`; -1 for those that it has not.
at::Tensor ids_in(const Variable& variable, const RowLookup& lookup) {
  if (lookup.table == variable.state()) return lookup.ids;
  const at::Tensor rows = lookup.ids.add(*first_row_in(variable, lookup));
  const at::Tensor others = lookup.ids.lt(0).logical_or(rows.lt(0)).logical_or(rows.ge(variable.sizes()[0]));
  return rows.masked_fill(others, -1);
}

// Of the lookups that the loss depends on.
RowGradient sum_by_row(const Variable& table, const std::vector<const RowLookup*>& lookups, const Parts& gradients) {
  if (lookups.size() == 1 && lookups[0]->table == table.state()) {
    return {table, lookups[0]->part_ids, rows::sum(gradients[0], lookups[0]->places, lookups[0]->part_ids)};
  }
  Parts ids;
  for (const RowLookup* lookup : lookups) ids.push_back(ids_in(table, *lookup));
  auto [places, part_ids] = rows::unique(at::cat(ids), starts_of(table));  // a row that two have seen is one row
  Parts sums = rows::sum(at::cat(gradients), places, part_ids);
  return {table, std::move(part_ids), std::move(sums)};
}

// By the tensors that autograd knows of a variable: what stands for its parts, if the trace has come to them, and the
// rows that were looked up.
std::vector<FoundGradient> find_gradients(const at::Tensor& loss, const std::vector<Variable>& variables,
                                          double weight = 1) {
  Tracer* tracer = Tracer::current();
  if (tracer == nullptr) {
    throw failed_precondition(
        "gradient() belongs inside a traced function (muster::function): outside of one a variable "
        "is a plain value and nothing records how the loss came about");
  }
  Parts inputs;
  for (const Variable& variable : variables) {
    for (const Variable& part : parts_of(variable)) {
      const at::Tensor stand_in = tracer->known_stand_in(*part.state());
      check_differentiable(part, stand_in);
      if (stand_in.defined()) inputs.push_back(stand_in);
    }
    for (const RowLookup& lookup : tracer->lookups) {
      if (first_row_in(variable, lookup)) inputs.push_back(lookup.leaf);
    }
  }
  if (!loss.requires_grad()) {
    throw invalid_argument("gradient: the loss (", spec_of(loss).to_string(),
                           ") depends on no trainable variable; was it computed under a NoGradGuard or detached?");
  }
  Parts found;
  if (!inputs.empty()) {
    Parts weights;
    // A constant, where libtorch would make ones like the loss: what follows from it can be computed once, and the loss
    // itself only if somebody asks for it. Of a loss with several numbers libtorch says what is wrong.
    if (loss.numel() == 1) weights.push_back(at::full(loss.sizes(), weight, loss.options().requires_grad(false)));
    found = torch::autograd::grad({loss}, inputs, weights, /*retain_graph=*/true, /*create_graph=*/false,
                                  /*allow_unused=*/true);
  }
  c10::AutoGradMode no_gradients(false);
  std::vector<FoundGradient> result;
  auto next = found.begin();
  for (const Variable& variable : variables) {
    FoundGradient& gradient = result.emplace_back();
    Parts parts;
    bool used = false;
    for (const Variable& part : parts_of(variable)) {
      const at::Tensor stand_in = tracer->known_stand_in(*part.state());
      parts.push_back(stand_in.defined() ? *next++ : at::Tensor());
      used = used || parts.back().defined();
    }
    if (used) {
      for (size_t i = 0; i < parts.size(); ++i) {  // a variable that is used is used as a whole
        if (!parts[i].defined()) parts[i] = zeros_for(parts_of(variable)[i]);
      }
      gradient.whole = parts.size() == 1 ? parts[0] : at::cat(parts);
    }
    std::vector<const RowLookup*> lookups;
    Parts by_lookup;
    for (const RowLookup& lookup : tracer->lookups) {
      if (!first_row_in(variable, lookup)) continue;
      const at::Tensor rows = *next++;
      if (!rows.defined()) continue;
      lookups.push_back(&lookup);
      by_lookup.push_back(rows);
    }
    if (!lookups.empty()) gradient.rows = sum_by_row(variable, lookups, by_lookup);
  }
  return result;
}

}  // namespace

at::Tensor as_dense(const RowGradient& gradient, const at::Tensor& more) {
  c10::AutoGradMode no_gradients(false);
  const at::Tensor dense = more.defined() ? more.clone() : zeros_for(gradient.table);
  const std::vector<int64_t> starts = starts_of(gradient.table);
  for (size_t i = 0; i < gradient.ids.size(); ++i) {
    dense.narrow(0, starts[i], starts[i + 1] - starts[i]).index_add_(0, gradient.ids[i], gradient.rows[i]);
  }
  return dense;
}

const RowGradient* Gradients::rows_of(const Variable& table) const {
  for (const RowGradient& gradient : rows) {
    if (gradient.table.state() == table.state()) return &gradient;
  }
  return nullptr;
}

Gradients gradients_by_rows(const at::Tensor& loss, const std::vector<Variable>& variables, double weight) {
  Gradients gradients;
  for (FoundGradient& found : find_gradients(loss, variables, weight)) {
    if (found.rows && found.whole.defined()) found.whole = as_dense(*std::exchange(found.rows, {}), found.whole);
    gradients.dense.push_back(std::move(found.whole));
    if (found.rows) gradients.rows.push_back(std::move(*found.rows));
  }
  return gradients;
}

std::vector<at::Tensor> gradient(const at::Tensor& loss, const std::vector<Variable>& variables) {
  std::vector<at::Tensor> whole;
  for (FoundGradient& found : find_gradients(loss, variables)) {
    c10::AutoGradMode no_gradients(false);
    if (found.rows) found.whole = as_dense(*found.rows, found.whole);
    whole.push_back(found.whole.defined() ? found.whole : zeros_for(variables[whole.size()]));
  }
  return whole;
}

at::Tensor gradient(const at::Tensor& loss, const Variable& variable) {
  return gradient(loss, std::vector<Variable>{variable})[0];
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
  for (const Variable& copy : variable.copies()) scatter(copy, how, ids, updates);
  if (!variable.copies().empty()) return;
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
