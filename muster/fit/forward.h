// Calls the forward method of a torch::nn module with the columns of a dataset.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/base/status.h"
#include "muster/trace/iterator.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/tracer/leaves.h"

namespace muster {

// What a model gives for its inputs: one tensor or several, with their names.
using Forward = std::function<Features(const Features& inputs)>;

// What forward() of a model takes: so many tensors by their places, or Features, of any number.
struct InputsTaken {
  size_t count = 1;  // 1 by name
  bool by_name = false;
};

// What tensors are called that have no names: "output", or "output_0", "output_1" and so on.
std::vector<std::string> names_by_place(const char* word, size_t count);

// What forward() returns, as outputs: a tensor; tuples, vectors and arrays of them, in their order; or Features and
// maps, which give them names. Throws Error{kInvalidArgument} for Features without a name for each.
Features named_outputs(Features outputs);
template <class Result>
Features outputs_of(const Result& result) {
  if constexpr (std::is_same_v<Result, Features>) {
    return named_outputs(result);
  } else {
    std::vector<std::string> names;
    std::vector<at::Tensor> tensors;
    for_each_leaf(result, [&]<class Leaf>(Leaf& leaf) {
      if constexpr (std::is_same_v<std::remove_const_t<Leaf>, at::Tensor>) tensors.push_back(leaf);
      if constexpr (std::is_same_v<Result, std::map<std::string, at::Tensor>> &&
                    std::is_same_v<std::remove_const_t<Leaf>, std::string>) {
        names.push_back(leaf);
      }
    });
    return named_outputs({std::move(names), std::move(tensors)});
  }
}

namespace forward_internal {

// How many outputs a result of this type is; 0: only a call says.
template <class Result>
struct OutputCount : std::integral_constant<size_t, 0> {};
template <>
struct OutputCount<at::Tensor> : std::integral_constant<size_t, 1> {};
template <class... Parts>
struct OutputCount<std::tuple<Parts...>>
    : std::integral_constant<size_t,
                             ((OutputCount<Parts>::value > 0) && ...) ? (OutputCount<Parts>::value + ... + 0) : 0> {};
template <class A, class B>
struct OutputCount<std::pair<A, B>> : OutputCount<std::tuple<A, B>> {};
template <class Part, size_t N>
struct OutputCount<std::array<Part, N>> : std::integral_constant<size_t, N * OutputCount<Part>::value> {};

// The parameters and the result of forward(), if it is one function and no template.
template <class Method>
struct Signature;
template <class R, class Module, class... Args>
struct Signature<R (Module::*)(Args...)> {
  using Types = std::tuple<std::remove_cvref_t<Args>...>;
  using Result = std::remove_cvref_t<R>;
};
template <class R, class Module, class... Args>
struct Signature<R (Module::*)(Args...) const> : Signature<R (Module::*)(Args...)> {};

template <class Module>
constexpr bool kHasOneForward = requires { &Module::forward; };

template <class Module>
consteval size_t output_count() {
  if constexpr (kHasOneForward<Module>) {
    return OutputCount<typename Signature<decltype(&Module::forward)>::Result>::value;
  } else {
    using Result = decltype(std::declval<Module&>().forward(std::declval<const at::Tensor&>()));
    return OutputCount<std::remove_cvref_t<Result>>::value;
  }
}

template <class Module, size_t... I>
auto call(Module& module, const std::vector<at::Tensor>& inputs, std::index_sequence<I...>) {
  return module.forward(inputs[I]...);
}

template <class Module>
Features call(Module& module, const Features& inputs) {
  const std::vector<at::Tensor>& tensors = inputs.tensors();
  if constexpr (kHasOneForward<Module>) {
    using Types = typename Signature<decltype(&Module::forward)>::Types;
    constexpr size_t count = std::tuple_size_v<Types>;
    if constexpr (std::is_same_v<Types, std::tuple<Features>>) {
      return outputs_of(module.forward(inputs));
    } else {
      if (tensors.size() != count) {
        throw invalid_argument(
            "forward() of the model takes ", count, " tensors, but an example has ", tensors.size(),
            " inputs; select() some, label() those that are targets, or let forward() take muster::Features");
      }
      return outputs_of(call(module, tensors, std::make_index_sequence<count>()));
    }
  } else if (tensors.size() == 1) {  // one of several forward(), such as that of torch::nn::Sequential
    return outputs_of(module.forward(tensors[0]));
  } else {
    throw invalid_argument("forward() of the model takes one tensor, but an example has ", tensors.size(), " inputs");
  }
}

template <class Module>
auto& module_in(Module& module) {
  if constexpr (requires { module->named_parameters(); }) {
    return *module;
  } else {
    return module;
  }
}

template <class Module>
consteval InputsTaken inputs_taken() {
  if constexpr (kHasOneForward<Module>) {
    using Types = typename Signature<decltype(&Module::forward)>::Types;
    return {.count = std::tuple_size_v<Types>, .by_name = std::is_same_v<Types, std::tuple<Features>>};
  } else {
    return {};
  }
}

}  // namespace forward_internal

// `module` is a module or what holds one.
template <TorchModule Module>
Forward forward_of(Module module) {
  return [module](const Features& inputs) mutable {
    return forward_internal::call(forward_internal::module_in(module), inputs);
  };
}

// The names of its outputs, if its type says how many there are and not what they are called; else none.
template <TorchModule Module>
std::vector<std::string> output_names_of(Module& module) {
  using Plain = std::remove_reference_t<decltype(forward_internal::module_in(module))>;
  return names_by_place("output", forward_internal::output_count<Plain>());
}

template <TorchModule Module>
InputsTaken inputs_taken_by(Module& module) {
  return forward_internal::inputs_taken<std::remove_reference_t<decltype(forward_internal::module_in(module))>>();
}

}  // namespace muster
