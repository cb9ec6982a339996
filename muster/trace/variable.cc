#include "muster/trace/variable.h"

#include <ATen/ops/zeros.h>
#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "muster/base/status.h"
#include "muster/graph/device_set.h"
#include "muster/graph/device_spec.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/op_failure.h"
#include "muster/runtime/rows/row_table.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/thread_state.h"
#include "muster/trace/tracer/tracer.h"
#include "muster/trace/variable_scope.h"

namespace muster {
namespace {

std::string here_or_else(const VariableOptions& options) {
  return options.device.empty() ? DeviceScope::current() : options.device;
}

void refuse_while_tracing(const std::string& name) {
  if (Tracer::current() == nullptr) return;
  throw failed_precondition("variable \"", name,
                            "\" is made inside a traced function, which would make it again "
                            "with every trace; make it outside and use it inside");
}

// Modules keep plain tensors, so what says that such a tensor is a variable is its storage.
struct Adopted {
  absl::Mutex mu;
  // The variables hold their keys.
  absl::flat_hash_map<const c10::StorageImpl*, std::weak_ptr<Variable::State>> by_storage ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<const c10::TensorImpl*, std::weak_ptr<Variable::State>> by_tensor ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<const c10::StorageImpl*, std::weak_ptr<Variable::State>> shown ABSL_GUARDED_BY(mu);
};

// All that have a cell at the local worker.
struct Here {
  absl::Mutex mu;
  absl::flat_hash_set<Variable::State*> states ABSL_GUARDED_BY(mu);
  std::shared_ptr<VariableFiller> filler ABSL_GUARDED_BY(mu);
};

Here& here_registry() {
  static Here& registry = *new Here;
  return registry;
}

// Its copies or parts; itself if it has none.
std::vector<std::shared_ptr<Variable::State>> places_of(const std::shared_ptr<Variable::State>& made) {
  std::vector<std::shared_ptr<Variable::State>> places;
  for (const std::vector<Variable>& several : {made->copies, made->shards}) {
    for (const Variable& one : several) places.push_back(one.state());
  }
  if (places.empty()) places.push_back(made);
  return places;
}

void fill_here(const std::shared_ptr<Variable::State>& made) {
  std::shared_ptr<VariableFiller> filler;
  {
    Here& here = here_registry();
    absl::MutexLock lock(&here.mu);
    filler = here.filler;
  }
  if (!filler) return;
  const auto places = places_of(made);
  if (places[0]->cell) filler->fill(places);
}

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

void give_first_value(VariableCell& cell, const InitialValue& value, bool on_demand) {
  if (!on_demand) return cell.assign(value.tensor());
  PlainTensors plain;
  at::Tensor table = RowTable::zeros(cell.spec());
  RowTable::begin(table, *value.fill());
  cell.replace(std::move(table));
}

// Of a variable that there is no memory for, or whose initial value libtorch refuses.
Error not_made(const std::string& name, const InitialValue& initial, const Status& why) {
  const TensorSpec& spec = initial.spec();
  const bool needs_less_by_rows = why.code() == StatusCode::kResourceExhausted && initial.fill() &&
                                  !initial.rows_on_demand() && !spec.sizes.empty();
  return Error(
      Status(why.code(),
             str_cat("variable \"", name, "\" (", spec.to_string(), ", ", spec.bytes(), " bytes): ", why.message(),
                     needs_less_by_rows ? "; by InitialValue::on_demand(), or EmbeddingOptions::on_demand, a "
                                          "row on a CPU or a parameter server takes memory when it is first trained"
                                        : ""),
             why.task(), why.detail()));
}

}  // namespace

void set_variable_filler(std::shared_ptr<VariableFiller> filler) {
  Here& here = here_registry();
  absl::MutexLock lock(&here.mu);
  here.filler = std::move(filler);
}

VariableScope::VariableScope(std::shared_ptr<VariableCreator> creator) : outer_(current()) {
  using Authority = VariableCreator::Authority;
  const bool decides =
      !creator || !outer_ || creator->authority() == Authority::kAlways || creator->authority() == outer_->authority();
  if (decides) ThreadState::here().creator = std::move(creator);
}
VariableScope::~VariableScope() { ThreadState::here().creator = outer_; }
const std::shared_ptr<VariableCreator>& VariableScope::current() { return ThreadState::here().creator; }

static void check_wire(const VariableOptions& options, const TensorSpec& spec) {
  if (options.wire.type == WireType::kAsIs || spec.dtype == DType::kFloat) return;
  throw invalid_argument("variable \"", options.name, "\" is ", spec.to_string(), ", which cannot be sent as ",
                         options.wire.to_string(), "; expected float32");
}

Variable::State::State(TensorSpec s, VariableOptions given, std::shared_ptr<VariableHome> h)
    : options(std::move(given)), spec(std::move(s)), home(std::move(h)) {
  check_wire(options, spec);
}

Variable::State::State(std::vector<Variable> parts, VariableOptions given)
    : options(std::move(given)), shards(std::move(parts)) {
  if (shards.empty()) throw invalid_argument("a sharded variable should be a non-empty list of variables");
  spec = shards[0].state()->spec;
  on_demand = shards[0].state()->on_demand;
  if (spec.sizes.empty()) throw invalid_argument("a sharded variable has rows; \"", shards[0].name(), "\" is a scalar");
  spec.sizes[0] = 0;
  for (const Variable& shard : shards) {
    TensorSpec other = shard.state()->spec;
    if (other.dtype != spec.dtype) {
      throw invalid_argument("the parts of a sharded variable must have the same dtype: \"", shards[0].name(), "\" is ",
                             shards[0].state()->spec.to_string(), ", \"", shard.name(), "\" is ", other.to_string());
    }
    if (other.sizes.size() != spec.sizes.size() ||
        !std::equal(other.sizes.begin() + 1, other.sizes.end(), spec.sizes.begin() + 1)) {
      throw invalid_argument("the parts of a sharded variable must have the same shapes except for the first axis: \"",
                             shards[0].name(), "\" is ", shards[0].state()->spec.to_string(), ", \"", shard.name(),
                             "\" is ", other.to_string());
    }
    spec.sizes[0] += other.sizes[0];
  }
  for (const Variable& shard : shards) {
    if (!shard.state()->part_of) continue;
    throw invalid_argument("\"", shard.name(), "\" is a part of variable \"", shard.state()->part_of->name,
                           "\" already, so it cannot be one of \"", options.name, "\"");
  }
  int64_t first = 0;
  for (const Variable& shard : shards) {
    shard.state()->part_of = PartOf{options.name, spec.sizes, first};
    first += shard.sizes()[0];
  }
}

std::shared_ptr<Variable::State> Variable::State::mirrored(std::vector<Variable> copies, VariableOptions options) {
  options.name = copies[0].name();
  auto whole = std::make_shared<State>(copies[0].state()->spec, std::move(options), nullptr);
  for (const Variable& copy : copies) copy.state()->copy_of = whole;
  whole->copies = std::move(copies);
  return whole;
}

Variable::State::State(const InitialValue& value, VariableOptions given, at::Tensor module_tensor)
    : options(std::move(given)), spec(value.spec()), adopted(std::move(module_tensor)) {
  refuse_while_tracing(options.name);
  check_wire(options, spec);
  options.device = here_or_else(options);
  LocalWorker& worker = local_worker();
  const std::string& here = worker.devices().default_name();
  DeviceSet devices(worker.devices().names(), here, worker.soft_placement());
  const DeviceSpec wish = DeviceSpec::parse(options.device);
  if (wish.job && *wish.job != *DeviceSpec::parse(worker.devices().task()).job) {
    initial = value.tensor().clone();  // may throw, and there will be no destructor to give the name back
    options.name = take_remote_name(options.name);
    return;
  }
  const std::string device = devices.resolve(options.device, here, str_cat("variable \"", options.name, "\""));
  cell = worker.store().declare_new(options.name, spec, worker.devices().device(device));
  options.name = cell->name();
  on_demand = value.rows_on_demand() && cell->device().is_cpu();
  try {
    give_first_value(*cell, value, on_demand);
  } catch (...) {
    worker.store().erase(cell->name());  // there will be no destructor
    throw;
  }
  Here& here_too = here_registry();
  absl::MutexLock lock(&here_too.mu);
  here_too.states.insert(this);
}

at::Tensor Variable::State::tracing_value() const {
  if (cell && !on_demand) return cell->read();
  return initial.defined() ? initial : RowTable::zeros(spec);
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
    {
      Here& here = here_registry();
      absl::MutexLock lock(&here.mu);
      here.states.erase(this);
    }
    local_worker().store().erase(cell->name());
  } else if (shards.empty() && copies.empty() && !home) {
    give_back_remote_name(options.name);
  }
  if (!adopted_memory && !shown.defined()) return;
  Adopted& registry = adopted_registry();
  absl::MutexLock lock(&registry.mu);
  if (shown.defined()) registry.shown.erase(shown.storage().unsafeGetStorageImpl());
  if (!adopted_memory) return;
  registry.by_storage.erase(adopted_memory.unsafeGetStorageImpl());
  registry.by_tensor.erase(adopted.unsafeGetTensorImpl());
}

std::shared_ptr<Variable::State> Variable::State::adopt(at::Tensor tensor, VariableOptions options) {
  std::shared_ptr<State> state;
  if (const std::shared_ptr<VariableCreator> creator = VariableScope::current()) {
    state = creator->create(tensor, std::move(options), /*may_split=*/false);
    state->adopted = tensor;
  } else {
    state = std::make_shared<State>(tensor, std::move(options), tensor);
  }
  fill_here(state);
  Adopted& registry = adopted_registry();
  absl::MutexLock lock(&registry.mu);
  std::weak_ptr<State>& of_storage = registry.by_storage[tensor.storage().unsafeGetStorageImpl()];
  std::weak_ptr<State>& of_tensor = registry.by_tensor[tensor.unsafeGetTensorImpl()];
  for (const std::weak_ptr<State>& entry : {of_storage, of_tensor}) {
    if (auto other = entry.lock()) {
      throw already_exists("variable \"", state->options.name, "\": its tensor already stands for variable \"",
                           other->options.name, "\"; a module can be adopted once");
    }
  }
  of_storage = of_tensor = state;
  state->adopted_memory = tensor.storage();
  state->note_adopted_version();
  return state;
}

namespace {

uint32_t version_of(const at::Tensor& tensor) {
  const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
  return version.enabled() ? version.current_version() : 0;  // tensors of the inference mode count nothing
}

}  // namespace

void Variable::State::note_adopted_version() { adopted_version = version_of(adopted); }

bool Variable::State::adopted_was_changed() const {
  return adopted.defined() && version_of(adopted) != adopted_version.load(std::memory_order_relaxed);
}

std::shared_ptr<Variable::State> Variable::State::find(const at::Tensor& tensor) {
  Adopted& registry = adopted_registry();
  std::shared_ptr<State> state;
  {
    absl::MutexLock lock(&registry.mu);
    auto known = registry.by_storage.find(tensor.storage().unsafeGetStorageImpl());
    if (known != registry.by_storage.end()) state = known->second.lock();
    if (!state) {
      auto same = registry.by_tensor.find(tensor.unsafeGetTensorImpl());
      if (same != registry.by_tensor.end()) state = same->second.lock();
    }
  }
  const bool shows_a_copy = state && !state->copies.empty() && ReplicaContext::current() != nullptr;
  if (!state || shows_a_copy ||
      state->adopted.storage().unsafeGetStorageImpl() == state->adopted_memory.unsafeGetStorageImpl()) {
    return state;
  }
  throw failed_precondition("variable \"", state->options.name, "\": the tensor of the module that stands for it (",
                            state->spec.to_string(), ") has been replaced by another one (",
                            spec_of(state->adopted).to_string(),
                            "), as to() and torch::load do; convert or load a module before it is adopted");
}

std::shared_ptr<Variable::State> Variable::State::find_shown(const at::Tensor& tensor) {
  Adopted& registry = adopted_registry();
  absl::MutexLock lock(&registry.mu);
  const auto known = registry.shown.find(tensor.storage().unsafeGetStorageImpl());
  return known == registry.shown.end() ? nullptr : known->second.lock();
}

at::Tensor shown_parameter(const Variable& variable, at::Tensor parameter) {
  const std::shared_ptr<Variable::State>& state = variable.state();
  Adopted& registry = adopted_registry();
  absl::MutexLock lock(&registry.mu);
  if (!state->shown.defined()) {
    PlainTensors plain;
    const at::Tensor without_memory = at::zeros({1}, variable.dtype()).expand(variable.sizes());
    if (parameter.defined()) {
      parameter.set_data(without_memory);
    } else {
      parameter = without_memory;
    }
    state->shown = parameter.set_requires_grad(variable.trainable());
    registry.shown[state->shown.storage().unsafeGetStorageImpl()] = state;
  }
  return state->shown;
}

bool Variable::State::is_adopted(const c10::StorageImpl* storage) {
  Adopted& registry = adopted_registry();
  absl::MutexLock lock(&registry.mu);
  return registry.by_storage.contains(storage);
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

std::vector<std::shared_ptr<Variable::State>> Variable::State::all_here() {
  Here& here = here_registry();
  std::vector<std::shared_ptr<State>> states;
  {
    absl::MutexLock lock(&here.mu);
    for (State* state : here.states) {
      if (auto alive = state->weak_from_this().lock()) states.push_back(std::move(alive));
    }
  }
  std::sort(states.begin(), states.end(),
            [](const auto& a, const auto& b) { return a->options.name < b->options.name; });
  return states;
}

Variable::Variable(const InitialValue& initial, VariableOptions options) {
  refuse_while_tracing(options.name);
  if (options.synchronization == Synchronization::kOnRead) options.trainable = false;
  const std::string wish = options.name;
  try {
    if (const std::shared_ptr<VariableCreator> creator = VariableScope::current()) {
      state_ = creator->create(initial, std::move(options), /*may_split=*/true);
    } else {
      state_ = std::make_shared<State>(initial, std::move(options));
    }
  } catch (const Error& error) {
    if (error.code() != StatusCode::kResourceExhausted) throw;
    throw not_made(wish, initial, error.status());
  } catch (const c10::Error&) {
    throw not_made(wish, initial, status_of_op_failure());
  }
  fill_here(state_);
}

const std::string& Variable::name() const { return state_->options.name; }
const std::string& Variable::device() const { return state_->options.device; }
bool Variable::trainable() const { return state_->options.trainable; }
at::IntArrayRef Variable::sizes() const { return state_->spec.sizes; }
at::ScalarType Variable::dtype() const { return scalar_type_of(state_->spec.dtype); }

namespace {

using MakeInitial = std::function<InitialValue(const std::vector<int64_t>& sizes)>;

// Its value may be kept for it.
void fill(const Variable& made) {
  const auto places = places_of(made.state());
  if (places[0]->home) {
    places[0]->home->fill(places);
  } else {
    fill_here(made.state());
  }
}

Variable make_one_beside(const Variable& other, const std::string& name, const MakeInitial& initial) {
  VariableOptions options{.name = name, .trainable = false, .device = other.device()};
  const Variable::State& state = *other.state();
  const InitialValue value = initial(state.spec.sizes);
  options.wire = state.options.wire;  // what is pushed to one is often pushed to both
  if (value.spec().dtype != DType::kFloat) options.wire.type = WireType::kAsIs;
  if (state.home) return Variable(state.home->create_beside(state, value, std::move(options)));
  return Variable(std::make_shared<Variable::State>(value, std::move(options)));
}

// A whole with a part beside each of the places.
Variable make_parts_beside(const std::vector<Variable>& places, VariableOptions options, const MakeInitial& initial,
                           bool alike) {
  std::vector<Variable> parts;
  for (const Variable& place : places) {
    parts.push_back(make_one_beside(place, str_cat(options.name, "/part_", parts.size()), initial));
  }
  Variable whole(std::make_shared<Variable::State>(std::move(parts), std::move(options)));
  for (const Variable& part : whole.shards()) part.state()->part_of->alike = alike;
  fill(whole);
  return whole;
}

}  // namespace

Variable make_beside(const Variable& other, const std::string& name, const MakeInitial& initial, bool alike) {
  if (!other.copies().empty()) {
    std::vector<Variable> copies;
    for (const Variable& copy : other.copies()) {
      // A checkpoint knows the whole by the name of the first.
      const std::string own = copies.empty() ? name : str_cat(name, "/copy_", copies.size());
      copies.push_back(make_one_beside(copy, own, initial));
    }
    Variable made(Variable::State::mirrored(std::move(copies), {.name = name, .trainable = false}));
    fill(made);
    return made;
  }
  if (!other.shards().empty()) {
    return make_parts_beside(other.shards(), {.name = name, .trainable = false, .device = other.device()}, initial,
                             alike);
  }
  Variable made = make_one_beside(other, name, initial);
  fill(made);
  return made;
}

Variable make_beside_all(const std::vector<Variable>& others, const std::string& name, const InitialValue& row) {
  const MakeInitial initial = [&](const std::vector<int64_t>&) { return row; };
  const Variable& first = others[0];
  const bool here = first.shards().empty() && !first.state()->home;  // devices of one process read each other's memory
  if (here || !first.copies().empty()) return make_beside(first, name, initial);
  std::vector<Variable> places;
  auto add = [&](const Variable& place) {
    auto there = [&](const Variable& known) { return known.device() == place.device(); };
    if (std::none_of(places.begin(), places.end(), there)) places.push_back(place);
  };
  for (const Variable& other : others) {
    if (other.shards().empty()) add(other);
    for (const Variable& shard : other.shards()) add(shard);
  }
  if (places.size() == 1) return make_beside(places[0], name, initial);
  return make_parts_beside(places, {.name = name, .trainable = false}, initial, /*alike=*/true);
}

}  // namespace muster
