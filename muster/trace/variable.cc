#include "muster/trace/variable.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/zeros_like.h>
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <torch/csrc/autograd/autograd.h>

#include "muster/base/status.h"
#include "muster/graph/device_set.h"
#include "muster/graph/device_spec.h"
#include "muster/runtime/local_worker.h"
#include "muster/runtime/tensors.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/tracer.h"

namespace muster {
namespace {

// Modules keep plain tensors, so what says that such a tensor is a variable is its storage.
struct Adopted {
  absl::Mutex mu;
  absl::flat_hash_map<const c10::StorageImpl*, std::weak_ptr<Variable::State>> by_storage ABSL_GUARDED_BY(mu);
};

Adopted& adopted_registry() {
  static Adopted& registry = *new Adopted;  // never destroyed: modules with static lifetime may outlive it
  return registry;
}

// Names of variables that live with other tasks. A program that makes the same variables in the same order in another
// process names them alike, and so finds them.
struct RemoteNames {
  absl::Mutex mu;
  absl::flat_hash_set<std::string> taken ABSL_GUARDED_BY(mu);
};

RemoteNames& remote_names() {
  static RemoteNames& names = *new RemoteNames;  // never destroyed, as above
  return names;
}

std::string take_remote_name(const std::string& wish) {
  RemoteNames& names = remote_names();
  absl::MutexLock lock(&names.mu);
  std::string name = wish;
  for (int suffix = 1; !names.taken.insert(name).second; ++suffix) name = str_cat(wish, "_", suffix);
  return name;
}

void give_back_remote_name(const std::string& name) {
  RemoteNames& names = remote_names();
  absl::MutexLock lock(&names.mu);
  names.taken.erase(name);
}

}  // namespace

Variable::State::State(const at::Tensor& initial, VariableOptions given, at::Tensor module_tensor)
    : options(std::move(given)), spec(spec_of(initial)), adopted(std::move(module_tensor)) {
  if (Tracer::current() != nullptr) {
    throw failed_precondition("variable \"", options.name,
                              "\" is made inside a traced function, which would make it again "
                              "with every trace; make it outside and use it inside");
  }
  if (options.device.empty()) options.device = DeviceScope::current();
  LocalWorker& worker = local_worker();
  const std::string& here = worker.devices().default_name();
  DeviceSet devices(worker.devices().names(), here, /*soft_placement=*/true);
  const DeviceSpec wish = DeviceSpec::parse(options.device);
  if (wish.job && *wish.job != *DeviceSpec::parse(worker.devices().task()).job) {
    options.name = take_remote_name(options.name);
    this->initial = initial.detach().clone();
    return;
  }
  const std::string device = devices.resolve(options.device, here, str_cat("variable \"", options.name, "\""));
  cell = worker.store().declare_new(options.name, spec, worker.devices().device(device));
  options.name = cell->name();
  cell->assign(initial.detach());
}

VariableCell& Variable::State::local() const {
  if (!cell) {
    throw failed_precondition("variable \"", options.name, "\" lives on ", options.device,
                              "; read or write it in a function that a session runs");
  }
  return *cell;
}

Variable::State::~State() {
  if (cell) {
    local_worker().store().erase(cell->name());
  } else {
    give_back_remote_name(options.name);
  }
  if (!adopted.defined()) return;
  Adopted& registry = adopted_registry();
  absl::MutexLock lock(&registry.mu);
  registry.by_storage.erase(adopted.storage().unsafeGetStorageImpl());
}

std::shared_ptr<Variable::State> Variable::State::adopt(at::Tensor tensor, VariableOptions options) {
  auto state = std::make_shared<State>(tensor, std::move(options), tensor);
  Adopted& registry = adopted_registry();
  absl::MutexLock lock(&registry.mu);
  std::weak_ptr<State>& entry = registry.by_storage[tensor.storage().unsafeGetStorageImpl()];
  if (auto other = entry.lock()) {
    state->adopted.reset();  // its destructor must leave the other's entry alone
    throw already_exists("variable \"", state->options.name, "\": its tensor already stands for variable \"",
                         other->options.name, "\"; a module can be adopted once");
  }
  entry = state;
  return state;
}

std::shared_ptr<Variable::State> Variable::State::find(const c10::StorageImpl* storage) {
  Adopted& registry = adopted_registry();
  absl::MutexLock lock(&registry.mu);
  auto it = registry.by_storage.find(storage);
  return it == registry.by_storage.end() ? nullptr : it->second.lock();
}

std::vector<std::shared_ptr<Variable::State>> Variable::State::all_adopted() {
  Adopted& registry = adopted_registry();
  absl::MutexLock lock(&registry.mu);
  std::vector<std::shared_ptr<State>> states;
  for (const auto& [storage, state] : registry.by_storage) {
    if (auto alive = state.lock()) states.push_back(std::move(alive));
  }
  return states;
}

Variable::Variable(const at::Tensor& initial, VariableOptions options)
    : state_(std::make_shared<State>(initial, std::move(options))) {}

const std::string& Variable::name() const { return state_->options.name; }
const std::string& Variable::device() const { return state_->options.device; }
bool Variable::trainable() const { return state_->options.trainable; }
at::IntArrayRef Variable::sizes() const { return state_->spec.sizes; }
at::ScalarType Variable::dtype() const { return scalar_type_of(state_->spec.dtype); }

at::Tensor Variable::value() const {
  if (Tracer* tracer = Tracer::current()) return tracer->stand_in(state_);
  return state_->local().read();
}

namespace {

template <class Write>
void write(const std::shared_ptr<Variable::State>& state, bool whole, const Write& write) {
  if (Tracer* tracer = Tracer::current()) {
    c10::AutoGradMode no_gradients(false);
    write(tracer->stand_in(state));
    return;
  }
  VariableCell& cell = state->local();
  at::Tensor target = cell.begin_write(whole);
  try {
    PlainTensors plain;
    write(target);
  } catch (...) {
    cell.end_write(/*keep=*/false);
    throw;
  }
  cell.end_write();
}

void check_shape(const Variable& variable, const at::Tensor& value) {
  if (at::is_expandable_to(value.sizes(), variable.sizes())) return;
  throw invalid_argument("variable \"", variable.name(), "\" is ", variable.state()->spec.to_string(),
                         "; cannot assign ", spec_of(value).to_string());
}

}  // namespace

Variable& Variable::assign(const at::Tensor& value) {
  check_shape(*this, value);
  write(state_, /*whole=*/true, [&](at::Tensor target) { target.copy_(value); });
  return *this;
}

Variable& Variable::assign_add(const at::Tensor& delta) {
  check_shape(*this, delta);
  write(state_, /*whole=*/false, [&](at::Tensor target) { target.add_(delta); });
  return *this;
}

Variable& Variable::assign_sub(const at::Tensor& delta) {
  check_shape(*this, delta);
  write(state_, /*whole=*/false, [&](at::Tensor target) { target.sub_(delta); });
  return *this;
}

at::Tensor gradient(const at::Tensor& loss, const Variable& variable) {
  return gradient(loss, std::vector<Variable>{variable})[0];
}

std::vector<at::Tensor> gradient(const at::Tensor& loss, const std::vector<Variable>& variables) {
  Tracer* tracer = Tracer::current();
  if (tracer == nullptr) {
    throw failed_precondition(
        "gradient() belongs inside a traced function (muster::function): outside of one a variable "
        "is a plain value and nothing records how the loss came about");
  }
  std::vector<at::Tensor> inputs;
  for (const Variable& variable : variables) {
    inputs.push_back(tracer->stand_in(variable.state()));
    if (!inputs.back().requires_grad()) {
      throw invalid_argument("gradient: variable \"", variable.name(), "\" (", variable.state()->spec.to_string(),
                             ") is not trainable or not of a floating-point type");
    }
  }
  if (!loss.requires_grad()) {
    throw invalid_argument("gradient: the loss (", spec_of(loss).to_string(),
                           ") depends on no trainable variable; was it computed under a NoGradGuard or detached?");
  }
  std::vector<at::Tensor> gradients =
      torch::autograd::grad({loss}, inputs, /*grad_outputs=*/{}, /*retain_graph=*/true, /*create_graph=*/false,
                            /*allow_unused=*/true);
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i].defined()) gradients[i] = at::zeros_like(inputs[i]);
  }
  return gradients;
}

}  // namespace muster
