// Calls the forward method of a torch::nn module with the columns of a dataset.
#pragma once

#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "muster/base/status.h"
#include "muster/trace/iterator.h"
#include "muster/trace/leaves.h"
#include "muster/trace/module_variables.h"

namespace muster {

// What a model gives for its inputs.
using Forward = std::function<at::Tensor(const Features& inputs)>;

namespace forward_internal {

// The parameters of forward(), if it is one function and no template.
template <class Method>
struct Parameters;
template <class Result, class Module, class... Args>
struct Parameters<Result (Module::*)(Args...)> {
  using Types = std::tuple<std::remove_cvref_t<Args>...>;
};
template <class Result, class Module, class... Args>
struct Parameters<Result (Module::*)(Args...) const> : Parameters<Result (Module::*)(Args...)> {};

template <class Module>
constexpr bool kHasOneForward = requires { &Module::forward; };

template <class Module, size_t... I>
at::Tensor call(Module& module, const std::vector<at::Tensor>& inputs, std::index_sequence<I...>) {
  return module.forward(inputs[I]...);
}

template <class Module>
at::Tensor call(Module& module, const Features& inputs) {
  const std::vector<at::Tensor>& tensors = inputs.tensors();
  if constexpr (kHasOneForward<Module>) {
    using Types = typename Parameters<decltype(&Module::forward)>::Types;
    constexpr size_t count = std::tuple_size_v<Types>;
    if constexpr (std::is_same_v<Types, std::tuple<Features>>) {
      return module.forward(inputs);
    } else {
      if (tensors.size() != count) {
        throw invalid_argument("forward() of the model takes ", count, " tensors, but an example has ", tensors.size(),
                               " inputs; select() some, or let forward() take muster::Features");
      }
      return call(module, tensors, std::make_index_sequence<count>());
    }
  } else if (tensors.size() == 1) {  // one of several forward(), such as that of torch::nn::Sequential
    return module.forward(tensors[0]);
  } else {
    throw invalid_argument("forward() of the model takes one tensor, but an example has ", tensors.size(), " inputs");
  }
}

}  // namespace forward_internal

// `module` is a module or what holds one.
template <TorchModule Module>
Forward forward_of(Module module) {
  return [module](const Features& inputs) mutable {
    if constexpr (requires { module->named_parameters(); }) {
      return forward_internal::call(*module, inputs);
    } else {
      return forward_internal::call(module, inputs);
    }
  };
}

}  // namespace muster
