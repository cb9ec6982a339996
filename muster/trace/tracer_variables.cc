// What stands for variables while a function is traced.
#include "muster/runtime/tensors.h"
#include "muster/trace/dispatcher_hook.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/tracer.h"

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

}  // namespace muster
