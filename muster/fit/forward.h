// Calls the forward method of a torch::nn module with the columns of a dataset.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/trace/iterator.h"
#include "muster/trace/module_variables.h"
#include "muster/trace/tracer/leaves.h"

namespace muster {

// What a model gives for its inputs: one tensor or several, with their names.
using Forward = std::function<Features(const Features& inputs)>;

// What forward() of a model takes: so many tensors by their places, or Features, of any number.
struct InputsTaken {
  size_t count = 1;      // without those that have a default; 1 by name
  size_t most = count;   // with them, or by an overload
  bool by_name = false;  // Features
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

// Whether forward() can be called with so many tensors, whatever else it has defaults for.
template <class Module, size_t... I>
consteval bool takes(std::index_sequence<I...>) {
  return requires(Module& module, const at::Tensor& tensor) { module.forward((static_cast<void>(I), tensor)...); };
}

inline constexpr size_t kMostTensors = 8;

// By the number of tensors less one; the last one is for those that take any number.
template <class Module>
consteval std::array<bool, kMostTensors + 1> numbers_taken() {
  auto ask = []<size_t... I>(std::index_sequence<I...>) {
    return std::array<bool, kMostTensors + 1>{takes<Module>(std::make_index_sequence<I + 1>())...};
  };
  return ask(std::make_index_sequence<kMostTensors + 1>());
}

// With a count of 0 it takes neither tensors nor Features.
template <class Module>
consteval InputsTaken inputs_taken() {
  constexpr std::array<bool, kMostTensors + 1> taken = numbers_taken<Module>();
  constexpr size_t least = static_cast<size_t>(std::find(taken.begin(), taken.end(), true) - taken.begin()) + 1;
  if constexpr (least <= kMostTensors) {
    InputsTaken inputs{.count = least};
    // One that takes any number, such as that of torch::nn::Sequential, is called with the least.
    for (size_t count = least; count <= kMostTensors && !taken.back(); ++count) {
      if (taken[count - 1]) inputs.most = count;
    }
    return inputs;
  } else if constexpr (requires(Module& module, const Features& features) { module.forward(features); }) {
    return {.by_name = true};
  } else {
    return {.count = 0};
  }
}

template <class Module, size_t... I>
auto call(Module& module, const std::vector<at::Tensor>& inputs, std::index_sequence<I...>) {
  return module.forward(inputs[I]...);
}

// Throws Error{kInvalidArgument}.
[[noreturn]] void refuse_inputs(const InputsTaken& taken, size_t given);

// Finds out how many there are, from `count` up.
template <class Module, size_t count = 1>
Features call_with_all(Module& module, const std::vector<at::Tensor>& inputs) {
  constexpr InputsTaken taken = inputs_taken<Module>();
  if constexpr (count > taken.most) {
    refuse_inputs(taken, inputs.size());
  } else {
    if constexpr (numbers_taken<Module>()[count - 1]) {
      if (inputs.size() == count) return outputs_of(call(module, inputs, std::make_index_sequence<count>()));
    }
    return call_with_all<Module, count + 1>(module, inputs);
  }
}

template <class Module>
Features call(Module& module, const Features& inputs) {
  constexpr InputsTaken taken = inputs_taken<Module>();
  static_assert(taken.count > 0,
                "a model has a public forward() that takes 1 to 8 torch::Tensor, by value or as const torch::Tensor&, "
                "or const muster::Features&; whatever else it takes has a default");
  if constexpr (taken.by_name) {
    return outputs_of(module.forward(inputs));
  } else if constexpr (taken.count > 0) {
    return call_with_all(module, inputs.tensors());
  }
}

template <class Module>
consteval size_t output_count() {
  constexpr InputsTaken taken = inputs_taken<Module>();
  if constexpr (taken.by_name) {
    using Result = decltype(std::declval<Module&>().forward(std::declval<const Features&>()));
    return OutputCount<std::remove_cvref_t<Result>>::value;
  } else if constexpr (taken.count > 0) {
    using Result = decltype(call(std::declval<Module&>(), std::declval<const std::vector<at::Tensor>&>(),
                                 std::make_index_sequence<taken.count>()));
    return OutputCount<Result>::value;
  } else {
    return 0;
  }
}

[[noreturn]] void refuse_no_module();  // throws Error{kInvalidArgument}

// Of what holds one, such as torch::nn::Sequential{nullptr}.
template <class Module>
void expect_module(const Module& module) {
  if constexpr (requires { module->named_parameters(), static_cast<bool>(module); }) {
    if (!static_cast<bool>(module)) refuse_no_module();
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
