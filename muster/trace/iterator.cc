#include "muster/trace/iterator.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <absl/strings/str_join.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/graph/elements.h"
#include "muster/runtime/executor/next_element.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/runtime/worker/run_options.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/tracer/dispatcher_hook.h"
#include "muster/trace/tracer/tracer.h"

namespace muster {

RowsOfReplica rows_of_replica(int64_t rows, int64_t replica, int64_t replicas, Deal deal) {
  if (deal == Deal::kFirstOnesFull) {
    const int64_t share = (rows + replicas - 1) / replicas, first = std::min(replica * share, rows);
    return {.first = first, .count = std::min(share, rows - first)};
  }
  const int64_t each = rows / replicas, more = rows % replicas;
  return {.first = replica * each + std::min(replica, more), .count = each + (replica < more ? 1 : 0)};
}

namespace {

at::Tensor dealt_to(const at::Tensor& batch, int64_t replica, int64_t replicas, Deal deal) {
  if (replicas == 1) return batch;
  if (batch.dim() == 0) {
    throw invalid_argument("a batch for ", replicas, " replicas is ", spec_of(batch).to_string(),
                           ", which has no rows to deal out; add batch(n)");
  }
  const auto [first, count] = rows_of_replica(batch.size(0), replica, replicas, deal);
  return batch.narrow(0, first, count);
}

}  // namespace

Iterator iterator_over(std::shared_ptr<ElementSource> source, Iterator pattern) {
  PlainTensors plain;
  const uint64_t number = random_id() >> 1;  // an int64 in programs
  local_worker().add_source(number, std::move(source));
  pattern.number = at::scalar_tensor(static_cast<int64_t>(number), at::TensorOptions(at::kLong));
  pattern.source = {std::shared_ptr<void>(nullptr, [number](void*) { local_worker().close_source(number); })};
  return pattern;
}

namespace {

// That of this process with the number. Throws Error{kNotFound} if there is none.
std::shared_ptr<SharedSource> source_of(const at::Tensor& number) {
  return local_worker().source(static_cast<uint64_t>(number.item().toLong()));
}

// The mean over replicas is the mean over rows only if all have as many.
void warn_of_shares(const std::vector<at::Tensor>& batch, int64_t replicas, Deal deal) {
  if (batch.empty() || batch[0].dim() == 0 || batch[0].size(0) % replicas == 0) return;
  MUSTER_LOG(warning) << "a batch of " << batch[0].size(0) << " rows for " << replicas
                      << " replicas: the last ones get "
                      << (rows_of_replica(batch[0].size(0), replicas - 1, replicas, deal).count == 0
                              ? "none: a step of fit() is smaller by their share, and a mean that a function takes of "
                                "nothing is not a number"
                              : "fewer, and each replica counts alike, however many rows it has")
                      << "; take a multiple, and batch(n, /*drop_remainder=*/true)";
}

// Each tensor is dealt out by its own rows: with other numbers of them, a replica would get parts of other examples.
void check_rows_alike(const std::vector<at::Tensor>& batch) {
  for (const at::Tensor& tensor : batch) {
    if (tensor.dim() == 0 || batch[0].dim() == 0 || tensor.size(0) == batch[0].size(0)) continue;
    throw invalid_argument("a batch for several replicas has tensors with ", batch[0].size(0), " and ", tensor.size(0),
                           " rows; expected as many in each, to deal them out");
  }
}

}  // namespace

bool Features::contains(std::string_view name) const { return std::ranges::find(names_, name) != names_.end(); }

const at::Tensor& Features::operator[](std::string_view name) const& {
  const auto place = std::ranges::find(names_, name);
  if (place == names_.end()) {
    const bool none = std::ranges::all_of(names_, &std::string::empty);
    throw invalid_argument("the elements have no column \"", name, "\"; ",
                           none ? "their columns have no names (Dataset::named, and for models ExportOptions::inputs "
                                  "or the input_names of ModelCheckpoint, give some)"
                                : str_cat("they have ", absl::StrJoin(names_, ", ")));
  }
  return tensors_[static_cast<size_t>(place - names_.begin())];
}

bool Iterator::begin_again() const {
  if (!number.defined()) return false;
  return source_of(number)->begin_again();
}

std::string Iterator::position() const {
  const Untraced untraced;
  std::string position = source_of(number)->position();
  if (position.empty()) throw failed_precondition("this sequence of examples does not know where it is");
  return position;
}

Features Iterator::next_features() {
  if (names.empty()) {
    throw invalid_argument(
        "the tensors of this sequence have no names; they come from a dataset that was parsed, or "
        "next<N>() gives them by their number");
  }
  return {names, next_tensors(names.size())};
}

std::pair<Features, at::Tensor> Iterator::next_labelled() {
  if (labels == 0) {
    throw invalid_argument("no column of this sequence is a label: Dataset::label(\"name\") says which one is");
  }
  if (labels > 1) {
    throw invalid_argument("this sequence has ", labels, " labels, the last of the columns ",
                           absl::StrJoin(names, ", "), ", expected one; next_features() gives them all");
  }
  std::vector<at::Tensor> tensors = next_tensors(names.size());
  at::Tensor label = std::move(tensors.back());
  tensors.pop_back();
  return {Features({names.begin(), names.end() - 1}, std::move(tensors)), std::move(label)};
}

std::vector<at::Tensor> Iterator::next_tensors(size_t count) {
  ReplicaContext* replica = ReplicaContext::current();
  if (replica == nullptr || shared_by == SharedBy::kNobody) return take(count);
  std::vector<at::Tensor> rows = replica->once("an element", [&] {
    DeviceScope from_host("/device:CPU:0");
    return take(count);
  });
  const bool by_all = shared_by == SharedBy::kAllReplicas;
  const int64_t replicas = by_all ? replica->num_replicas() : replica->num_replicas() / replica->across().size;
  const int64_t number_of_this = by_all ? replica->id() : replica->number_here();
  // TensorFlow deals batches of a known size out evenly, and those that its workers read alike as it did before that.
  const Deal deal = by_all && !replica->across().alone() ? Deal::kFirstOnesFull : Deal::kEvenly;
  // Whoever takes no gradients counts the rows that there are, or should.
  if (number_of_this == 0 && c10::GradMode::is_enabled()) warn_of_shares(rows, replicas, deal);
  if (replicas > 1) check_rows_alike(rows);
  for (at::Tensor& tensor : rows) tensor = dealt_to(tensor, number_of_this, replicas, deal);
  return rows;
}

std::string Iterator::described() const {
  std::string text;
  const ElementSpec element = element_from(specs);
  for (size_t i = 0; i < element.size(); ++i) {
    str_append(text, text.empty() ? "" : ", ", i < names.size() ? str_cat("\"", names[i], "\" ") : "",
               element[i].to_string());
  }
  return str_cat("a sequence of (", text, ")");
}

std::vector<at::Tensor> Iterator::take(size_t count) const {
  if (!number.defined()) throw failed_precondition("an iterator without a sequence: make one from a Dataset");
  Tracer* tracer = Tracer::current();
  std::vector<at::Tensor> element;
  std::vector<int64_t> described;
  if (tracer == nullptr) {
    auto source = source_of(number);
    auto taken = source->next();
    if (!taken) throw sequence_ended();
    element = std::move(*taken);
  } else {
    // Stand-ins: what an element holds is not known while tracing, only what it looks like.
    Untraced untraced;
    PlainTensors plain;
    const ElementSpec* given = tracer->next_element();
    described = given != nullptr ? numbers_of(*given) : specs;
    for (const TensorSpec& spec : element_from(described)) {
      element.push_back(at::zeros(spec.sizes, at::TensorOptions(scalar_type_of(spec.dtype))));
    }
  }
  if (element.size() != count) {
    throw invalid_argument("an element of this sequence has ", element.size(), " tensors; next<", count,
                           ">() was asked for ", count);
  }
  if (tracer == nullptr) return element;
  ArgumentList expected;
  for (int64_t value : described) expected.push_back({value});
  tracer->add_instruction(kNext, {{ValueRef{tracer->value_of(number)}}, {std::move(expected)}}, {element}, {});
  return element;
}

}  // namespace muster
