// What is read of a variable and written to it: of one place, of several parts, of a copy on each device.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/read_cache.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/tracer/tracer.h"
#include "muster/trace/variable.h"
#include "muster/trace/variable_scope.h"

namespace muster {

bool Variable::State::is_put_together() const {
  return own_by_replica() && options.aggregation != Aggregation::kOnlyFirstReplica &&
         copies.size() * static_cast<size_t>(across.size) > 1;
}

bool Variable::State::is_empty_share() const {
  const std::shared_ptr<State> whole = copy_of.lock();
  if (!whole || !whole->is_put_together() || whole->options.aggregation != Aggregation::kSum) return false;
  return whole->across.rank > 0 || whole->copies[0].state().get() != this;
}

namespace {

using Write = VariableHome::Write;

void write_here(at::Tensor target, Write how, const at::Tensor& value) {
  switch (how) {
    case Write::kAssign: target.copy_(value); break;
    case Write::kAdd: target.add_(value); break;
    case Write::kSub: target.sub_(value); break;
  }
}

void write(const Variable& variable, Write how, const at::Tensor& value);

// A type that has room for the sum of which the mean is taken.
at::ScalarType sums_of(at::ScalarType type) {
  if (at::isIntegralType(type, /*includeBool=*/false)) return at::kLong;
  return c10::isReducedFloatingType(type) ? at::kFloat : type;
}

at::Tensor aggregated(Aggregation aggregation, const std::vector<ReplicaContext::Tensors>& by_replica,
                      const AcrossWorkers& across, const std::string& purpose) {
  at::Tensor sum = by_replica[0][0];
  if (aggregation == Aggregation::kOnlyFirstReplica) {
    return across.make_one({.kind = CollectiveKind::kBroadcast, .purpose = purpose}, {sum})[0];
  }
  const bool mean = aggregation == Aggregation::kMean;
  const at::ScalarType type = sum.scalar_type();
  if (mean) sum = sum.to(sums_of(type));
  for (size_t i = 1; i < by_replica.size(); ++i) sum = sum.add(by_replica[i][0]);
  sum = across.sum(sum, purpose);
  if (!mean) return sum;
  const auto replicas = static_cast<int64_t>(by_replica.size()) * across.size;
  const bool whole = at::isIntegralType(type, /*includeBool=*/false);
  return (whole ? sum.div(replicas, "trunc") : sum.div(replicas)).to(type);
}

// `what` the variable is, and what to do about it.
void check_aggregation(const Variable& variable, const std::string& what, const char* instead) {
  const Aggregation aggregation = variable.state()->options.aggregation;
  if (aggregation == Aggregation::kNone) {
    throw invalid_argument("variable \"", variable.name(), "\" is ", what, "; ", instead,
                           " by VariableOptions::aggregation: kSum, kMean or kOnlyFirstReplica");
  }
  if (variable.dtype() == at::kBool && aggregation != Aggregation::kOnlyFirstReplica) {
    throw invalid_argument("variable \"", variable.name(), "\" is bool and ", what,
                           ": a sum counts, so use kOnlyFirstReplica, or whole numbers");
  }
}

// What the replicas have of it.
at::Tensor put_together(const Variable& variable) {
  const Variable::State& state = *variable.state();
  const auto replicas = static_cast<int>(state.copies.size()) * state.across.size;
  check_aggregation(variable, str_cat("read outside of ", replicas, " replicas, each of which has its own"),
                    "say what they are together");
  c10::AutoGradMode no_gradients(false);
  std::vector<ReplicaContext::Tensors> by_replica;
  for (const Variable& copy : state.copies) {
    const at::Tensor value = copy.value();
    by_replica.push_back({by_replica.empty() ? value : value.to(by_replica[0][0].device())});
  }
  at::Tensor value =
      aggregated(state.options.aggregation, by_replica, state.across,
                 str_cat("the value of variable \"", variable.name(), "\", which all workers read together"));
  note_alike({value});
  return value;
}

// One of several replicas writes: what all of them write becomes one write.
void write_with_others(ReplicaContext& replica, const Variable& variable, Write how, const at::Tensor& value) {
  const Aggregation aggregation = variable.state()->options.aggregation;
  check_aggregation(variable, str_cat("written by each of ", replica.num_replicas(), " replicas"),
                    "let an optimizer write what a module has, and say what becomes of others");
  replica.check_everywhere(*variable.state());
  const std::string what = str_cat("a write to variable \"", variable.name(), "\"");
  // As the variable has it, so that the mean of whole numbers need not be one.
  replica.merge(what, {variable}, {value.to(variable.dtype())},
                [variable, how, aggregation, what,
                 across = replica.across()](const std::vector<ReplicaContext::Tensors>& by_replica) {
                  c10::AutoGradMode no_gradients(false);
                  write(variable, how, aggregated(aggregation, by_replica, across, what));
                });
}

void write(const Variable& variable, Write how, const at::Tensor& value) {
  const std::shared_ptr<Variable::State>& state = variable.state();
  if (!at::is_expandable_to(value.sizes(), variable.sizes())) {
    throw invalid_argument("variable \"", variable.name(), "\" is ", state->spec.to_string(), "; cannot assign ",
                           spec_of(value).to_string());
  }
  ReplicaContext* replica = ReplicaContext::current();
  if (replica != nullptr && replica->num_replicas() > 1) {
    const bool is_own = state->own_by_replica() && !state->copy_of.expired();
    if (state->own_by_replica() && !state->copies.empty()) {
      replica->check_everywhere(*state);
      return write(variable.copy_here(), how, value);
    }
    if (!is_own) return write_with_others(*replica, variable, how, value);
  }
  if (!state->copies.empty()) {
    for (const Variable& copy : state->copies) {
      DeviceScope there(copy.device());
      if (!copy.state()->is_empty_share()) {
        write(copy, how, value);
      } else if (how == Write::kAssign) {
        write(copy, how, at::zeros({}, value.options().requires_grad(false)));
      }
    }
    return;
  }
  if (!state->shards.empty()) {
    const at::Tensor rows = value.expand(variable.sizes());
    int64_t first = 0;
    for (const Variable& shard : state->shards) {
      write(shard, how, rows.narrow(0, first, shard.sizes()[0]));
      first += shard.sizes()[0];
    }
    return;
  }
  if (Tracer* tracer = Tracer::current()) {
    c10::AutoGradMode no_gradients(false);
    return write_here(tracer->stand_in(state), how, value);
  }
  if (state->home) return state->home->write(*state, how, value);
  VariableCell& cell = state->local();
  at::Tensor target = cell.begin_write(how == Write::kAssign);
  try {
    PlainTensors plain;
    write_here(target, how, value);
  } catch (...) {
    cell.end_write(/*keep=*/false);
    throw;
  }
  cell.end_write();
}

}  // namespace

at::Tensor Variable::value() const {
  if (!state_->copies.empty()) {
    const ReplicaContext* replica = ReplicaContext::current();
    if (replica != nullptr) replica->check_readable(*state_);
    return replica == nullptr && state_->is_put_together() ? put_together(*this) : copy_here().value();
  }
  if (!state_->shards.empty()) {
    std::vector<at::Tensor> parts;
    for (const Variable& shard : state_->shards) parts.push_back(shard.value());
    return at::cat(parts);
  }
  auto read = [&] {
    if (Tracer* tracer = Tracer::current()) {
      if (const ReplicaContext* replica = ReplicaContext::current()) replica->check_readable(*state_);
      return tracer->stand_in(state_);
    }
    if (state_->home) return state_->home->read(*state_);
    state_->local().count_whole_read();
    return state_->local().read();
  };
  ReadCacheScope* cache = ReadCacheScope::current();
  return cache == nullptr ? read() : cache->value(state_, read);
}

at::Tensor Variable::memory() const {
  Tracer* tracer = Tracer::current();
  if (tracer == nullptr) {
    throw failed_precondition("the memory of variable \"", name(), "\" is for ops of a traced function");
  }
  if (const ReplicaContext* replica = ReplicaContext::current()) {
    replica->check_readable(*state_);
  } else if (state_->is_put_together()) {
    throw failed_precondition("variable \"", name(),
                              "\" has memory in each replica (Synchronization::kOnRead), and outside of them no "
                              "one of its own; assign() it as a whole");
  }
  return tracer->stand_in(copy_here().state());
}

const std::vector<Variable>& Variable::shards() const { return state_->shards; }
const std::vector<Variable>& Variable::copies() const { return state_->copies; }

Variable Variable::copy_here() const {
  return state_->copies.empty() ? *this : state_->copies[static_cast<size_t>(replica_id()) % state_->copies.size()];
}

Variable& Variable::assign(const at::Tensor& value) {
  write(*this, Write::kAssign, value);
  return *this;
}

Variable& Variable::assign_add(const at::Tensor& delta) {
  write(*this, Write::kAdd, delta);
  return *this;
}

Variable& Variable::assign_sub(const at::Tensor& delta) {
  write(*this, Write::kSub, delta);
  return *this;
}

}  // namespace muster
