// Control flow that depends on data, as part of a program. C++'s own if and for are unrolled by tracing.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "muster/trace/tracer/leaves.h"

namespace muster {

// values[index] along the first dimension; `index` is an int64 tensor of one element. Costs no copy, unlike
// index_select, so it is how a loop takes its batch out of a pool:
//   repeat(10, [&](at::Tensor i) { step(element(xs, i), element(ys, i)); });
at::Tensor element(const at::Tensor& values, const at::Tensor& index);

namespace control_flow_internal {

using Tensors = std::vector<at::Tensor>;
using Branch = std::function<Tensors()>;
using LoopBody = std::function<Tensors(const at::Tensor& index, const Tensors& state)>;
using LoopTest = std::function<at::Tensor(const Tensors& state)>;

Tensors cond(const at::Tensor& predicate, const Branch& then, const Branch& otherwise);
// `more` is asked before each trip unless `trips` is given.
Tensors loop(std::optional<int64_t> trips, const LoopTest& more, const LoopBody& body, const Tensors& state);

template <class T>
Tensors tensors_of(T value) {
  Tensors tensors;
  for_each_leaf(value, [&]<class Leaf>(Leaf& leaf) {
    if constexpr (std::same_as<Leaf, at::Tensor>) tensors.push_back(leaf);
  });
  return tensors;
}

// `like` with its tensors replaced.
template <class T>
T with_tensors(T like, const Tensors& tensors) {
  size_t next = 0;
  for_each_leaf(like, [&]<class Leaf>(Leaf& leaf) {
    if constexpr (std::same_as<Leaf, at::Tensor>) leaf = tensors[next++];
  });
  return like;
}

}  // namespace control_flow_internal

// Runs one of two functions without arguments, by the value of a tensor of one element. Both return the same kind of
// thing: tensors of equal shapes and types, or tuples, vectors, … of them. Differentiable,
// unless a branch writes to what is outside of it: then asking for the gradient is an error.
//   auto y = cond(x.sum() > 0, [&] { return x * w; }, [&] { return x - w; });
template <class Then, class Else>
auto cond(const at::Tensor& predicate, const Then& then, const Else& otherwise) {
  using namespace control_flow_internal;
  using Result = std::invoke_result_t<const Then&>;
  static_assert(std::same_as<Result, std::invoke_result_t<const Else&>>, "both branches of cond return the same type");
  if constexpr (std::is_void_v<Result>) {
    control_flow_internal::cond(predicate, [&] { return then(), Tensors{}; }, [&] { return otherwise(), Tensors{}; });
  } else {
    Result like;
    auto call = [&](const auto& branch) {
      like = branch();
      return tensors_of(like);
    };
    Tensors outputs =
        control_flow_internal::cond(predicate, [&] { return call(then); }, [&] { return call(otherwise); });
    return with_tensors(std::move(like), outputs);
  }
}

// state = body(state) while more(state), a tensor of one element, is true. The state is a tensor or a tuple, vector, …
// of tensors; it keeps its shapes and types. Differentiable.
template <class More, class Body, class State>
State while_loop(const More& more, const Body& body, State state) {
  using namespace control_flow_internal;
  static_assert(std::is_convertible_v<std::invoke_result_t<const Body&, State>, State>,
                "the body of while_loop takes the state and returns the next one");
  Tensors last = loop(
      std::nullopt, [&](const Tensors& now) -> at::Tensor { return more(with_tensors(state, now)); },
      [&](const at::Tensor&, const Tensors& now) { return tensors_of<State>(body(with_tensors(state, now))); },
      tensors_of(state));
  return with_tensors(std::move(state), last);
}

// state = body(index, state), `times` times; `index` is an int64 tensor of one element. Differentiable.
template <class Body, class State>
State repeat(int64_t times, const Body& body, State state) {
  using namespace control_flow_internal;
  Tensors last = loop(
      times, nullptr,
      [&](const at::Tensor& index, const Tensors& now) {
        return tensors_of<State>(body(index, with_tensors(state, now)));
      },
      tensors_of(state));
  return with_tensors(std::move(state), last);
}

// body() or body(index), `times` times, for what it does to variables. Ten training steps are one execution:
//   repeat(10, [&](at::Tensor i) { step(element(xs, i), element(ys, i)); });
template <class Body>
void repeat(int64_t times, const Body& body) {
  using namespace control_flow_internal;
  loop(times, nullptr,
       [&](const at::Tensor& index, const Tensors&) {
         if constexpr (std::is_invocable_v<const Body&, at::Tensor>) {
           body(index);
         } else {
           body();
         }
         return Tensors{};
       },
       {});
}

}  // namespace muster
