#include "muster/trace/module_variables.h"

#include <absl/strings/str_join.h>

#include "muster/base/status.h"
#include "muster/runtime/tensors.h"

namespace muster {

void ModuleVariables::add(const std::string& name, at::Tensor tensor, bool trainable, const AdoptOptions& options) {
  if (!tensor.defined()) return;
  for (size_t i = 0; i < variables_.size(); ++i) {
    if (!variables_[i].state()->adopted.is_same(tensor)) continue;
    names_.emplace_back(name, i);
    return;
  }
  VariableOptions variable{.name = options.prefix.empty() ? name : str_cat(options.prefix, ".", name),
                           .trainable = trainable && tensor.requires_grad(),
                           .device = options.device};
  names_.emplace_back(name, variables_.size());
  variables_.push_back(Variable(Variable::State::adopt(std::move(tensor), std::move(variable))));
}

std::vector<Variable> ModuleVariables::trainable() const {
  std::vector<Variable> trainable;
  for (const Variable& variable : variables_) {
    if (variable.trainable()) trainable.push_back(variable);
  }
  return trainable;
}

const Variable& ModuleVariables::at(const std::string& name) const {
  std::vector<std::string> known;
  for (const auto& [own, index] : names_) {
    if (own == name) return variables_[index];
    known.push_back(own);
  }
  throw not_found("module has no parameter or buffer \"", name, "\"; it has ", absl::StrJoin(known, ", "));
}

void ModuleVariables::write_back() const {
  PlainTensors plain;
  for (const Variable& variable : variables_) variable.state()->adopted.copy_(variable.value());
}

}  // namespace muster
