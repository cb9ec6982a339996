// The parameters and buffers of a torch::nn module as variables.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/trace/variable.h"

namespace muster {

// A torch::nn module, or what points to one: its holder (torch::nn::Linear, torch::nn::Sequential, …) or a shared_ptr.
template <class T>
concept TorchModule = requires(T& module) {
  module.named_parameters();
  module.named_buffers();
} || requires(T& module) {
  module->named_parameters();
  module->named_buffers();
};

struct AdoptOptions {
  std::string prefix{};  // of the variables' names: "net" gives "net.0.weight"
  std::string device{};
  bool keep = false;  // tensors that stand for a variable already go on doing so; else that is an error
};

// A part of a module that makes the variables of its parameters itself, when the module is adopted: see
// shown_parameter().
class MakesVariables {
 public:
  virtual ~MakesVariables() = default;
  // In the scope of a strategy if there is one; once. `options.prefix` is where this part is in the module: "users", or
  // "net.users"; empty if it is the whole.
  virtual void make_variables(const AdoptOptions& options) const = 0;
};

// From now on a traced function that uses the module uses these variables: `net->forward(x)` reads them, an in-place
// update of a parameter or a running statistic updates them. The module's own tensors stand for them while tracing and
// keep the values that they had; `write_back` brings the trained values home.
class ModuleVariables {
 public:
  // `module` is anything with libtorch's named_parameters() and named_buffers(); it outlives the variables' use.
  template <class Module>
  explicit ModuleVariables(Module& module, const AdoptOptions& options = {}) : modes_(modes_of(module)) {
    let_parts_make_theirs(module, options);
    for (auto& parameter : module.named_parameters()) add(parameter.key(), parameter.value(), true, options);
    for (auto& buffer : module.named_buffers()) add(buffer.key(), buffer.value(), false, options);
  }

  // Those of a module that was adopted before. Throws Error{kFailedPrecondition} if it was not, or not all of it.
  template <class Module>
  static ModuleVariables of(const Module& module) {
    ModuleVariables found;
    for (const auto& parameter : module.named_parameters()) found.add_adopted(parameter.key(), parameter.value());
    for (const auto& buffer : module.named_buffers()) found.add_adopted(buffer.key(), buffer.value());
    return found;
  }

  const std::vector<Variable>& all() const& { return variables_; }
  std::vector<Variable> all() && { return std::move(variables_); }  // so that a loop over adopted(net).all() is one
  std::vector<Variable> trainable() const;
  Variable at(const std::string& name) const;  // as the module names it; Error{kNotFound} lists the names
  std::vector<std::pair<std::string, Variable>> named() const;  // by the module's names, in its order

  // Copies the values of the variables into the module's tensors,
  void write_back() const;
  // and what is written in the module's tensors (by torch::load, or by hand) into the variables. Under a strategy of
  // several processes each of them does so, with the same values.
  void read_module() const;

  // Whether nobody but these variables holds a tensor of the module.
  bool module_is_gone() const;

 private:
  ModuleVariables() = default;
  void add_adopted(const std::string& name, const at::Tensor& tensor);
  bool known(const std::string& name, const at::Tensor& tensor);
  template <class Module>
  static void let_parts_make_theirs(const Module& module, const AdoptOptions& options) {
    auto let_make = [](const auto& part, const AdoptOptions& here) {
      if (const auto* maker = dynamic_cast<const MakesVariables*>(&part)) maker->make_variables(here);
    };
    if constexpr (std::is_polymorphic_v<Module>) let_make(module, options);
    if constexpr (requires { *module.named_modules(options.prefix, false)[0].value(); }) {
      for (const auto& part : module.named_modules(options.prefix, /*include_self=*/false)) {
        AdoptOptions here = options;
        here.prefix = part.key();
        let_make(*part.value(), here);
      }
    }
  }
  // A function that uses the module is traced again when eval() or train() has changed one of its parts. Nothing of the
  // module is kept alive by that; once a part has gone, nothing changes any more.
  // Limit: of a module that no shared_ptr holds (it may be moved, so nobody knows where it is) only the parts are seen.
  template <class Module>
  static std::shared_ptr<const ModuleModes> modes_of(Module& module) {
    if constexpr (requires { module.modules(false)[0]->is_training(), module.weak_from_this(); }) {
      auto whole = module.modules(/*include_self=*/false);
      if (auto self = module.weak_from_this().lock()) whole.push_back(std::move(self));
      if (whole.empty()) return nullptr;
      std::vector<typename decltype(whole)::value_type::weak_type> parts(whole.begin(), whole.end());
      auto last = std::make_shared<std::atomic<uint64_t>>(0);
      return std::make_shared<const ModuleModes>([parts = std::move(parts), last] {
        uint64_t number = 0;
        for (const auto& each : parts) {
          const auto part = each.lock();
          if (!part) return last->load();
          number = number * 0x9E3779B97F4A7C15 + part->is_training() + 1;
        }
        last->store(number);
        return number;
      });
    } else {
      return nullptr;
    }
  }
  void add(const std::string& name, at::Tensor tensor, bool trainable, const AdoptOptions& options);

  std::shared_ptr<const ModuleModes> modes_;
  std::vector<Variable> variables_;
  std::vector<std::pair<std::string, size_t>> names_;  // a tensor that the module has twice is one variable
};

// What a module registers as its parameter for a variable that it has made itself: a tensor of the variable's shape
// without the memory for it, by which adopt(), adopted() and optimizers find the variable. Traced functions use the
// variable; that tensor in the place of it is Error{kFailedPrecondition}. `parameter`, if it is registered already,
// becomes that tensor, and gives its memory up.
at::Tensor shown_parameter(const Variable& variable, at::Tensor parameter = {});

// The variables that such tensors of modules stand for: variables_of(net->parameters()). Throws
// Error{kFailedPrecondition} if one stands for none.
std::vector<Variable> variables_of(const std::vector<at::Tensor>& tensors);

// `auto variables = muster::adopt(net);`
template <class Module>
[[nodiscard]] ModuleVariables adopt(Module& module, const AdoptOptions& options = {}) {
  static_assert(TorchModule<Module>, "adopt takes a torch::nn module or its holder");
  if constexpr (requires { module.named_parameters(); }) {
    return ModuleVariables(module, options);
  } else {
    return ModuleVariables(*module, options);
  }
}

// The variables of a module that was adopted, or made by ParameterServerStrategy::make:
// `muster::adopted(net).write_back();`. Throws as ModuleVariables::of.
template <class Module>
ModuleVariables adopted(const Module& module) {
  static_assert(TorchModule<const Module>, "adopted takes a torch::nn module or its holder");
  if constexpr (requires { module.named_parameters(); }) {
    return ModuleVariables::of(module);
  } else {
    return ModuleVariables::of(*module);
  }
}

}  // namespace muster
