#include "muster/trace/module_variables.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/trace/variable_scope.h"

namespace muster {
namespace {

// Puts variables on the device of another one, which lives with another task.
class Beside : public VariableCreator {
 public:
  explicit Beside(Variable other) : other_(std::move(other)) {}
  Authority authority() const override { return Authority::kStrategy; }
  std::shared_ptr<Variable::State> create(const InitialValue& initial, VariableOptions options, bool) override {
    const std::shared_ptr<VariableHome>& home = other_.state()->home;
    auto state = home->create_beside(*other_.state(), initial, std::move(options));
    home->fill({state});
    return state;
  }

 private:
  const Variable other_;
};

std::shared_ptr<Variable::State> find(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return nullptr;
  auto shown = Variable::State::find_shown(tensor);
  return shown ? shown : Variable::State::find(tensor);
}

std::shared_ptr<Variable::State> adopted_state(const std::string& what, const at::Tensor& tensor) {
  if (auto state = find(tensor)) return state;
  throw failed_precondition(what, " (", tensor.defined() ? spec_of(tensor).to_string() : "undefined",
                            ") stands for no variable; adopt the module, or let a strategy make it: "
                            "strategy.make<torch::nn::Linear>(2, 3)");
}

std::string_view parent_of(std::string_view name) {
  const size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? "" : name.substr(0, dot);
}

}  // namespace

void ModuleVariables::add(const std::string& name, at::Tensor tensor, bool trainable, const AdoptOptions& options) {
  if (!tensor.defined() || known(name, tensor)) return;
  if (!tensor.has_storage()) throw invalid_argument("\"", name, "\" of the module is sparse, expected a dense tensor");
  if (Variable::State::find_shown(tensor) || (options.keep && Variable::State::find(tensor))) {
    return add_adopted(name, tensor);
  }
  VariableOptions variable{.name = options.prefix.empty() ? name : str_cat(options.prefix, ".", name),
                           .trainable = trainable && tensor.requires_grad(),
                           .device = options.device};
  if (!trainable) {  // each replica writes to its own, and the first one is saved
    variable.aggregation = Aggregation::kOnlyFirstReplica;
    variable.synchronization = Synchronization::kOnRead;
  }
  // One op may write to several buffers of a layer (batch norm does), and it runs on one device.
  std::optional<VariableScope> beside;
  for (const auto& [other, index] : names_) {
    const Variable& known = variables_[index];
    if (trainable || beside || known.trainable() || !known.state()->home || parent_of(other) != parent_of(name))
      continue;
    beside.emplace(std::make_shared<Beside>(known));
  }
  names_.emplace_back(name, variables_.size());
  variables_.push_back(Variable(Variable::State::adopt(std::move(tensor), std::move(variable))));
  variables_.back().state()->modes = modes_;
  for (const Variable& copy : variables_.back().copies()) copy.state()->modes = modes_;
}

// Whether the module has the tensor under another name, too.
bool ModuleVariables::known(const std::string& name, const at::Tensor& tensor) {
  for (size_t i = 0; i < variables_.size(); ++i) {
    const Variable::State& state = *variables_[i].state();
    if (!state.adopted.is_same(tensor) && !state.shown.is_same(tensor)) continue;
    names_.emplace_back(name, i);
    return true;
  }
  return false;
}

void ModuleVariables::add_adopted(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined() || known(name, tensor)) return;
  names_.emplace_back(name, variables_.size());
  variables_.emplace_back(adopted_state(str_cat("\"", name, "\" of the module"), tensor));
}

std::vector<Variable> variables_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Variable> variables;
  for (size_t i = 0; i < tensors.size(); ++i) variables.emplace_back(adopted_state(str_cat("tensor ", i), tensors[i]));
  return variables;
}

bool ModuleVariables::module_is_gone() const {
  return std::all_of(variables_.begin(), variables_.end(), [](const Variable& variable) {
    const Variable::State& state = *variable.state();
    return (state.adopted.defined() ? state.adopted : state.shown).use_count() == 1;
  });
}

std::vector<Variable> ModuleVariables::trainable() const {
  std::vector<Variable> trainable;
  for (const Variable& variable : variables_) {
    if (variable.trainable()) trainable.push_back(variable);
  }
  return trainable;
}

Variable ModuleVariables::at(const std::string& name) const {
  std::vector<std::string> known;
  for (const auto& [own, index] : names_) {
    if (own == name) return variables_[index];
    known.push_back(own);
  }
  throw not_found("module has no parameter or buffer \"", name, "\"; it has ", absl::StrJoin(known, ", "));
}

std::vector<std::pair<std::string, Variable>> ModuleVariables::named() const {
  std::vector<std::pair<std::string, Variable>> named;
  for (const auto& [name, index] : names_) named.emplace_back(name, variables_[index]);
  return named;
}

void ModuleVariables::write_back() const {
  PlainTensors plain;
  for (const Variable& variable : variables_) {
    if (!variable.state()->adopted.defined()) continue;  // the module reads the variable itself
    variable.state()->adopted.copy_(variable.value());
    variable.state()->note_adopted_version();
  }
}

void ModuleVariables::read_module() const {
  for (Variable variable : variables_) {
    if (!variable.state()->adopted.defined()) continue;
    at::Tensor value;
    {
      PlainTensors plain;
      value = variable.state()->adopted.detach().clone();
    }
    variable.assign(value);
    PlainTensors plain;
    Variable::State& state = *variable.state();
    if (state.adopted.storage().unsafeGetStorageImpl() != state.adopted_memory.unsafeGetStorageImpl()) {
      // torch::load gives a tensor other memory; the variable is known by that which it had.
      state.adopted.unsafeGetTensorImpl()->set_storage_keep_dtype(state.adopted_memory);
      state.adopted.unsafeGetTensorImpl()->set_sizes_contiguous(value.sizes());
      state.adopted.unsafeGetTensorImpl()->set_storage_offset(0);
      c10::AutoGradMode no_gradients(false);
      state.adopted.copy_(value);
    }
    state.note_adopted_version();
  }
}

}  // namespace muster
