// Functions that are traced once and then run as programs.
#pragma once

#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <tuple>
#include <typeinfo>
#include <vector>

#include "muster/trace/traced_function.h"
#include "muster/trace/tracer/leaves.h"

namespace muster {

// What a result has besides tensors.
template <class Result>
std::vector<std::string> plain_values(const Result& result) {
  std::vector<std::string> values;
  for_each_leaf(result, [&]<class Leaf>(Leaf& leaf) {
    if constexpr (!std::same_as<std::remove_const_t<Leaf>, at::Tensor>) values.push_back(describe_leaf(leaf));
  });
  return values;
}

// The result of a function whose program has given these outputs.
template <class Result>
Result result_of(const TracedFunction::Entry& entry, std::vector<at::Tensor> outputs) {
  Result result = *static_cast<const Result*>(entry.result.get());
  size_t next = 0;
  for_each_leaf(result, [&]<class Leaf>(Leaf& leaf) {
    if constexpr (std::same_as<Leaf, at::Tensor>) leaf = std::move(outputs[next++]);
  });
  return result;
}

// A C++ function over tensors. The first call with arguments of a kind (see Signature) traces it; that call and all
// later ones run the recorded program. Inside another traced function it is simply called, and becomes part of that
// trace. A handle, cheap to copy; thread-safe if what the lambda captures is only read, or is a Variable.
template <class F>
class Function {
 public:
  Function(F function, FunctionOptions options, std::string place)
      : function_(std::make_shared<F>(std::move(function))),
        traces_(std::make_shared<TracedFunction>(std::move(options), std::move(place))) {}

  template <class... Args>
  auto operator()(const Args&... args) const {
    return run({}, args...);
  }

  // With a step number, a profile, a way to cancel.
  template <class... Args>
  std::invoke_result_t<F&, Args&...> run(const RunOptions& options, const Args&... args) const {
    static_assert(std::is_invocable_v<F&, Args&...>, "the traced function cannot take these arguments");
    if (tracing()) {
      TracedFunction::Inlined inlined(*traces_);
      std::tuple<Args...> copies(args...);
      return std::apply(*function_, copies);
    }
    return run_by([&](const std::shared_ptr<TracedFunction::Entry>& entry,
                      std::vector<at::Tensor> tensors) { return traces_->run(*entry, std::move(tensors), options); },
                  args...);
  }

  // Lets `run(entry, tensors)` run the program: for those that run functions elsewhere.
  template <class Run, class... Args>
  std::invoke_result_t<F&, Args&...> run_by(const Run& run, const Args&... args) const {
    return run_as(*function_, /*key=*/0, run, args...);
  }

  // The same for what `how(args...)` does, which calls this function in a way of its own, such as once for each
  // replica. Its traces are kept here, apart from others: `key` tells ways of one type apart.
  template <class How, class Run, class... Args>
  std::invoke_result_t<How&, Args&...> run_as(How& how, uint64_t key, const Run& run, const Args&... args) const {
    using Result = std::invoke_result_t<How&, Args&...>;
    std::vector<at::Tensor> tensors;
    auto entry = find(how, key, {}, tensors, args...);
    std::vector<at::Tensor> outputs;
    if (entry->elements.empty()) {
      outputs = run(entry, std::move(tensors));
    } else {
      auto trace = [&](const ElementSpecs& elements) {
        std::vector<at::Tensor> again;
        return find(how, key, elements, again, args...);
      };
      outputs = TracedFunction::run_fitting(entry, tensors, run, trace);
    }
    if constexpr (!std::is_void_v<Result>) return result_of<Result>(*entry, std::move(outputs));
  }

  // The trace for arguments like these, made now if it is the first; `tensors` gets their tensors in the order of the
  // program's arguments.
  template <class... Args>
  std::shared_ptr<TracedFunction::Entry> bind(std::vector<at::Tensor>& tensors, const Args&... args) const {
    static_assert(std::is_invocable_v<F&, Args&...>, "the traced function cannot take these arguments");
    return find(*function_, 0, {}, tensors, args...);
  }
  // The trace for arguments like these and elements like those, which need not be as the sequences say.
  template <class... Args>
  std::shared_ptr<TracedFunction::Entry> bind_for(const ElementSpecs& elements, const Args&... args) const {
    std::vector<at::Tensor> tensors;
    return find(*function_, 0, elements, tensors, args...);
  }

  // The program for arguments like these, as it was traced: before passes and placement.
  template <class... Args>
  Program program(const Args&... args) const {
    std::vector<at::Tensor> tensors;
    return find(*function_, 0, {}, tensors, args...)->traced.program;
  }

  // That of the call before, if there was one.
  std::optional<Program> last_program() const { return traces_->last_program(); }

  const std::string& name() const { return traces_->name(); }
  FunctionStats stats() const { return traces_->stats(); }

 private:
  template <class How, class... Args>
  std::shared_ptr<TracedFunction::Entry> find(How& how, uint64_t key, const ElementSpecs& elements,
                                              std::vector<at::Tensor>& tensors, const Args&... args) const {
    using Result = std::invoke_result_t<How&, Args&...>;
    Signature signature(typeid(std::tuple<How*, Args...>).hash_code() ^ key);
    [[maybe_unused]] auto note = [&]<class Leaf>(Leaf& leaf) {
      signature.add(leaf);
      if constexpr (std::same_as<std::remove_const_t<Leaf>, at::Tensor>) tensors.push_back(leaf);
    };
    (for_each_leaf(args, note), ...);
    signature.add(elements);

    std::shared_ptr<const void> kept;
    auto call = [&](const std::vector<at::Tensor>& stand_ins) {
      std::tuple<Args...> copies(args...);
      size_t next = 0;
      for_each_leaf(copies, [&]<class Leaf>(Leaf& leaf) {
        if constexpr (std::same_as<Leaf, at::Tensor>) leaf = stand_ins[next++];
      });
      std::vector<at::Tensor> outputs;
      if constexpr (std::is_void_v<Result>) {
        std::apply(how, copies);
      } else {
        auto result = std::make_shared<std::remove_const_t<Result>>(std::apply(how, copies));
        for_each_leaf(*result, [&]<class Leaf>(Leaf& leaf) {
          if constexpr (std::same_as<Leaf, at::Tensor>) outputs.push_back(std::exchange(leaf, at::Tensor()));
        });
        if (!is_probing()) {
          kept = std::move(result);
        } else if (kept != nullptr && plain_values(*result) != plain_values(*static_cast<const Result*>(kept.get()))) {
          throw cancelled("another number is returned");
        }
      }
      return outputs;
    };
    auto describe = [&] {
      std::vector<std::string> descriptions;
      [[maybe_unused]] size_t position = 0;
      (describe_parts("argument " + std::to_string(position++), args, descriptions), ...);
      return descriptions;
    };
    return traces_->entry(std::move(signature), tensors, {call, [&] { return kept; }, describe}, elements);
  }

  std::shared_ptr<F> function_;
  std::shared_ptr<TracedFunction> traces_;
};

// `where`: for messages. A function that has no place which its caller knows is given an empty one, and a name.
template <class F>
Function<F> function(F f, FunctionOptions options = {}, std::source_location where = std::source_location::current()) {
  return Function<F>(std::move(f), std::move(options), place_in_source(where));
}

}  // namespace muster
