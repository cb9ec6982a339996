// The parameters and buffers of a torch::nn module as variables.
#pragma once

#include <string>
#include <vector>

#include "muster/trace/variable.h"

namespace muster {

struct AdoptOptions {
  std::string prefix{};  // of the variables' names: "net" gives "net.0.weight"
  std::string device{};
};

// From now on a traced function that uses the module uses these variables: `net->forward(x)` reads them, an in-place
// update of a parameter or a running statistic updates them. The module's own tensors stand for them while tracing and
// keep the values that they had; `write_back` brings the trained values home.
class ModuleVariables {
 public:
  // `module` is anything with libtorch's named_parameters() and named_buffers(); it outlives the variables' use.
  template <class Module>
  explicit ModuleVariables(Module& module, const AdoptOptions& options = {}) {
    for (auto& parameter : module.named_parameters()) add(parameter.key(), parameter.value(), true, options);
    for (auto& buffer : module.named_buffers()) add(buffer.key(), buffer.value(), false, options);
  }

  const std::vector<Variable>& all() const { return variables_; }
  std::vector<Variable> trainable() const;
  const Variable& at(const std::string& name) const;  // as the module names it; Error{kNotFound} lists the names

  // Copies the values of the variables into the module's tensors.
  void write_back() const;

 private:
  void add(const std::string& name, at::Tensor tensor, bool trainable, const AdoptOptions& options);

  std::vector<Variable> variables_;
  std::vector<std::pair<std::string, size_t>> names_;  // a tensor that the module has twice is one variable
};

// `auto variables = muster::adopt(net);` for a module or a module holder (torch::nn::Linear, torch::nn::Sequential, …).
template <class Module>
ModuleVariables adopt(Module& module, const AdoptOptions& options = {}) {
  if constexpr (requires { module.named_parameters(); }) {
    return ModuleVariables(module, options);
  } else {
    static_assert(requires { module->named_parameters(); }, "adopt takes a torch::nn module or its holder");
    return ModuleVariables(*module, options);
  }
}

}  // namespace muster
