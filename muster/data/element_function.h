// The typed door of Dataset::map and Dataset::filter: functions over the tensors of an element.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "muster/runtime/worker/element_source.h"
#include "muster/trace/function.h"

namespace muster {

// A function without its types. Thread-safe if the function is.
struct ElementFunction {
  std::string name{};
  // The trace for elements like `example`; null if the function takes another number of tensors.
  std::function<std::shared_ptr<TracedFunction::Entry>(const Element& example)> trace{};
};

namespace element_function_internal {

inline constexpr size_t kMostTensors = 8;

template <class T>
inline constexpr bool is_function = false;
template <class F>
inline constexpr bool is_function<Function<F>> = true;

template <class T>
inline constexpr bool holds_tensors = std::same_as<T, at::Tensor>;
template <class... T>
inline constexpr bool holds_tensors<std::tuple<T...>> = (holds_tensors<T> && ...);
template <class A, class B>
inline constexpr bool holds_tensors<std::pair<A, B>> = holds_tensors<A> && holds_tensors<B>;
template <class T>
inline constexpr bool holds_tensors<std::vector<T>> = holds_tensors<T>;
template <class T, size_t N>
inline constexpr bool holds_tensors<std::array<T, N>> = holds_tensors<T>;

template <size_t>
using Tensor = at::Tensor;

template <class F, class Numbers>
struct Call;
template <class F, size_t... I>
struct Call<F, std::index_sequence<I...>> {
  static constexpr bool possible = std::is_invocable_v<F&, Tensor<I>&...>;

  static std::shared_ptr<TracedFunction::Entry> trace(const Function<F>& function, const Element& example) {
    using Result = std::remove_cvref_t<std::invoke_result_t<F&, Tensor<I>&...>>;
    static_assert(holds_tensors<Result>,
                  "a function of a dataset returns a tensor, or a tuple, vector or array of tensors");
    std::vector<at::Tensor> tensors;
    return function.bind(tensors, example[I]...);
  }
};

template <class F, size_t Count>
using CallWith = Call<F, std::make_index_sequence<Count>>;

}  // namespace element_function_internal

// Limit: a lambda that takes `auto...` is tried with one to eight tensors, so its body must compile with each number.
template <class F>
ElementFunction element_function(const Function<F>& function) {
  using namespace element_function_internal;
  static_assert([]<size_t... I>(std::index_sequence<I...>) { return (CallWith<F, I + 1>::possible || ...); }(
                    std::make_index_sequence<kMostTensors>()),
                "a function of a dataset takes the tensors of an element, one to eight");
  auto trace = [function](const Element& example) {
    std::shared_ptr<TracedFunction::Entry> entry;
    auto try_count = [&]<size_t Count>(std::integral_constant<size_t, Count>) {
      if constexpr (CallWith<F, Count>::possible) {
        if (example.size() == Count) entry = CallWith<F, Count>::trace(function, example);
      }
    };
    [&]<size_t... I>(std::index_sequence<I...>) {
      (try_count(std::integral_constant<size_t, I + 1>()), ...);
    }(std::make_index_sequence<kMostTensors>());
    return entry;
  };
  return {function.name(), std::move(trace)};
}

// A plain lambda is traced as muster::function would, and named after the place where it is given.
template <class F>
ElementFunction element_function(F f, std::source_location where) {
  if constexpr (element_function_internal::is_function<F>) {
    return element_function(f);
  } else {
    return element_function(function(std::move(f), {}, where));
  }
}

}  // namespace muster
