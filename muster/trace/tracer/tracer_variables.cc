// What stands for variables while a function is traced.
#include <absl/strings/str_join.h>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/trace/caller.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/tracer/dispatcher_hook.h"
#include "muster/trace/tracer/tracer.h"

namespace muster {
namespace {

// Of one of the copies of a variable that stands for a tensor of a module: that variable; else null.
std::shared_ptr<Variable::State> adopted_whole(const Variable::State& copy) {
  auto whole = copy.copy_of.lock();
  return whole && whole->adopted.defined() ? whole : nullptr;
}

bool shown_by_module(const std::shared_ptr<Variable::State>& whole, const Variable::State& copy) {
  return Variable(whole).copy_here().state().get() == &copy;
}

}  // namespace

ValueId Tracer::add_variable(const std::shared_ptr<Variable::State>& variable, const at::Tensor& stand_in) {
  const ValueId value = program_.new_value();
  program_.variables.push_back({value, variable->options.name, variable->spec,
                                program_.intern_device(variable->options.device), variable->options.wire});
  variables_.push_back(variable);
  values_.bind(stand_in, value);
  values_.set_alike(stand_in, !variable->own_by_replica());
  stand_in_memories_[ValueTable::storage_of(stand_in)] = variable;
  return value;
}

std::shared_ptr<Variable::State> Tracer::variable_of(const at::Tensor& stand_in) {
  if (outer_ != nullptr) return root().variable_of(stand_in);
  for (const auto& variable : variables_) {
    const at::Tensor stands = known_stand_in(*variable);
    if (stands.defined() && stands.is_same(stand_in)) return variable;
  }
  return nullptr;
}

at::Tensor Tracer::stand_in(const std::shared_ptr<Variable::State>& variable) {
  if (outer_ != nullptr) return root().stand_in(variable);
  if (variable->adopted.defined()) return variable->adopted;
  if (const auto whole = adopted_whole(*variable)) {
    if (shown_by_module(whole, *variable)) return whole->adopted;
    const at::Tensor memory = memory_of_copy(*whole, variable);
    if (!values_.knows_storage(memory)) add_variable(variable, memory);
    return memory;
  }
  at::Tensor& stand_in = stand_ins_[variable.get()];
  if (!stand_in.defined()) {
    Untraced untraced;
    c10::AutoGradMode no_gradients(false);
    stand_in = variable->tracing_value();
    // One that lives elsewhere, or whose rows are made on demand, is a fresh tensor, perhaps larger than all memory: no
    // copy of that.
    const bool fresh = variable->home || variable->on_demand;
    if (!fresh) stand_in = stand_in.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true);
    if (variable->options.trainable && stand_in.is_floating_point()) stand_in.requires_grad_();
    add_variable(variable, stand_in);
  }
  return stand_in;
}

at::Tensor Tracer::known_stand_in(const Variable::State& variable) const {
  if (outer_ != nullptr) return outer_->known_stand_in(variable);
  if (variable.adopted.defined()) return variable.adopted;
  if (const auto whole = adopted_whole(variable); whole && shown_by_module(whole, variable)) return whole->adopted;
  auto it = stand_ins_.find(const_cast<Variable::State*>(&variable));
  return it == stand_ins_.end() ? at::Tensor() : it->second;
}

// ---- Copies of what a module has. Tensors are known by their memory, so each copy has its own: the first one that of
// the module, which shows the memory of another one while the replica of that is traced.
at::Tensor Tracer::memory_of_copy(const Variable::State& whole, const std::shared_ptr<Variable::State>& copy) {
  at::Tensor& memory = stand_ins_[copy.get()];
  if (memory.defined()) return memory;
  Untraced untraced;
  PlainTensors plain;
  memory = whole.adopted.detach();
  if (copy != whole.copies[0].state()) {
    memory = memory.clone();
    copy_memories_[ValueTable::storage_of(memory)] = copy;
  }
  return memory;
}

void Tracer::show_copies(int replica) {
  if (outer_ != nullptr) return root().show_copies(replica);
  for (const auto& whole : Variable::State::all_adopted()) {
    if (whole->copies.empty()) continue;
    (void)memory_of_copy(*whole, whole->copies[0].state());  // while the module has it
    const size_t shown = static_cast<size_t>(replica) % whole->copies.size();
    const at::Tensor memory = memory_of_copy(*whole, whole->copies[shown].state());
    whole->adopted.unsafeGetTensorImpl()->set_storage_keep_dtype(memory.storage());
  }
}

std::shared_ptr<Variable::State> Tracer::copy_with_memory(const at::Tensor& tensor) {
  const auto found = root().copy_memories_.find(ValueTable::storage_of(tensor));
  return found == root().copy_memories_.end() ? nullptr : found->second;
}

// ---- What replicas write. The copies of a variable are alike as long as each gets the same writes of the same values.
// A trace cannot know values, but it knows what they are made of.
std::shared_ptr<Variable::State> Tracer::variable_with_memory(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  if (auto copy = copy_with_memory(tensor)) return copy;
  const auto known = root().stand_in_memories_.find(ValueTable::storage_of(tensor));
  if (known != root().stand_in_memories_.end()) return known->second;
  auto adopted = Variable::State::find(tensor);
  return adopted && !adopted->copies.empty() ? adopted->copies[0].state() : adopted;
}

bool Tracer::alike(const at::Tensor& tensor) {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return true;
  if (is_own_of_process(tensor)) return false;
  if (values_.knows_storage(tensor)) return values_.alike(tensor);
  if (const auto variable = variable_with_memory(tensor)) return !variable->own_by_replica();
  return outer_ == nullptr && tensor.has_storage();  // it will be a constant
}

bool Tracer::is_own_of_process(const at::Tensor& tensor) {
  const ReplicaContext* replica = ReplicaContext::current();
  if (replica == nullptr || replica->across().alone() || !tensor.has_storage()) return false;
  const auto& known = root().stand_in_memories_;
  const auto found = known.find(ValueTable::storage_of(tensor));
  if (found == known.end()) return false;
  const auto whole = found->second->copy_of.lock();
  return !(whole ? whole->in_step() : found->second->in_step());
}

bool Tracer::runs_alike() const {
  for (const Tracer* around = outer_; around != nullptr; around = around->outer_) {
    if (!around->bodies_alike_) return false;
  }
  return true;
}

void Tracer::note_alike(const at::Tensor& tensor) {
  if (values_.knows_storage(tensor)) values_.set_alike(tensor, true);
}

void Tracer::note_written(const std::string& op, const at::Tensor& tensor, bool alike) {
  const auto variable = variable_with_memory(tensor);
  const auto whole = variable ? variable->copy_of.lock() : nullptr;
  if (!whole) {
    for (Tracer* tracer = this; tracer != nullptr; tracer = tracer->outer_) {
      if (tracer->values_.knows_storage(tensor)) tracer->values_.set_alike(tensor, alike);
    }
  }
  if (!variable || variable->own_by_replica()) return;
  if (whole) root().copy_writes_[variable.get()].push_back(op);
  const ReplicaContext* replica = ReplicaContext::current();
  if (replica == nullptr || replica->num_replicas() == 1) return;
  const bool others_here = replica->num_replicas() > replica->across().size;
  if (whole ? alike : !(variable->options.trainable && others_here)) return;
  const std::string optimizer = libtorch_function("torch::optim::");
  throw invalid_argument(
      options_.name, ": op ", op, optimizer.empty() ? "" : str_cat(" (of ", optimizer, ")"), " writes to variable \"",
      whole ? whole->options.name : variable->options.name, "\" in replica ", replica->id(), " of ",
      replica->num_replicas(),
      whole ? " what may differ from replica to replica, so the copies of the variable would drift apart"
            : ", and so does each of the others, to the same memory",
      "; let an optimizer do it (muster::Sgd, adam.minimize(loss)), or Variable::assign_sub() of a variable with an "
      "aggregation",
      whole ? ", or write what is the same for all: that of all_reduce(ReduceOp::kMean, gradient)" : "");
}

void Tracer::check_copies_are_written_alike() const {
  auto writes_to = [&](const Variable::State& copy) {
    const auto found = copy_writes_.find(&copy);
    return found == copy_writes_.end() ? std::vector<std::string>() : found->second;
  };
  auto in_words = [](const std::vector<std::string>& ops) {
    return ops.empty() ? "nothing" : absl::StrJoin(ops, ", ");
  };
  for (const auto& [written, ops] : copy_writes_) {
    const auto whole = written->copy_of.lock();
    for (const Variable& copy : whole->copies) {
      const std::vector<std::string> others = writes_to(*copy.state());
      if (others == ops) continue;
      throw invalid_argument(
          options_.name, ": variable \"", whole->options.name, "\" has a copy on each of ", whole->copies.size(),
          " devices, which would drift apart: ", written->options.device, " is written to by ", in_words(ops), ", ",
          copy.device(), " by ", in_words(others),
          "; a tensor of a module is one copy, so outside of strategy.run() use Variable::assign(), which writes to "
          "all, and inside of it write alike in every replica");
    }
  }
}

}  // namespace muster
