// What the replicas of a step give and take.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "muster/base/status.h"
#include "muster/base/strings.h"
#include "muster/trace/across_workers.h"
#include "muster/trace/tracer/leaves.h"

namespace muster {

// Of bool there is no sum and no mean; the least is whether all are true, the most whether any is.
enum class ReduceOp { kSum, kMean, kMin, kMax };

// A value for each replica of a step, or of each. Of one replica it goes where the value goes.
template <class T>
struct PerReplica {
  std::vector<T> values{};  // by replica

  // Throws Error{kFailedPrecondition} if there are several.
  const T& value() const {
    if (values.size() != 1) {
      throw failed_precondition("a value of each of ", values.size(),
                                " replicas is not one value; make it one by strategy.reduce(), or take values[i]");
    }
    return values[0];
  }
  operator T() const { return value(); }  // NOLINT: with one replica nobody needs to know of replicas
};

namespace replicas_internal {

const char* in_words(ReduceOp op);  // "mean"
// What processes do for it; the mean is made of a sum.
Reduction reduction_of(ReduceOp op);
// One of the two by `op`, which is kSum, or kMean likewise.
at::Tensor combined(ReduceOp op, const at::Tensor& some, const at::Tensor& others);
// What takes part in it for this value: of halves float32 for a mean, which fits where their sum does not.
at::Tensor operand(ReduceOp op, const at::Tensor& value);
// What a mean of such operands is of values of this type: of halves halves.
at::Tensor mean_as(at::ScalarType type, const at::Tensor& mean);

// What replica number `replica` gets of an argument.
template <class T>
const T& share(const T& argument, int, int) {
  return argument;
}
template <class T>
const T& share(const PerReplica<T>& argument, int replica, int replicas) {
  if (argument.values.size() == static_cast<size_t>(replicas)) return argument.values[static_cast<size_t>(replica)];
  throw invalid_argument("an argument of strategy.run() has values for ", argument.values.size(),
                         " replicas; the strategy has ", replicas);
}

template <class T>
struct ShareOf {
  using Type = T;
};
template <class T>
struct ShareOf<PerReplica<T>> {
  using Type = T;
};

// Throws Error{kInvalidArgument} for tensors of different types or shapes, but for the axis, and for those that lack
// it.
void check_alike(const std::string& what, const std::vector<at::Tensor>& values, std::optional<int64_t> axis);
// Likewise.
at::Tensor reduce(ReduceOp op, const std::vector<at::Tensor>& values, std::optional<int64_t> axis,
                  const AcrossWorkers& across);

// The tensors of each replica's value, leaf by leaf, made one with those of other processes.
template <class T>
T reduce(ReduceOp op, const PerReplica<T>& per_replica, std::optional<int64_t> axis, const AcrossWorkers& across) {
  if (per_replica.values.empty()) throw invalid_argument("reduce: there are no values");
  std::vector<std::vector<at::Tensor>> leaves;  // by leaf, then by replica
  std::vector<std::string> shapes;              // by replica: the sizes of vectors and the keys of maps
  for (T value : per_replica.values) {          // a copy: what is const in it is part of its shape
    size_t next = 0;
    std::string& shape = shapes.emplace_back();
    for_each_leaf(value, [&]<class Leaf>(Leaf& leaf) {
      if constexpr (std::same_as<Leaf, at::Tensor>) {
        if (next == leaves.size()) leaves.emplace_back();
        leaves[next++].push_back(leaf);
      } else if constexpr (std::is_const_v<Leaf> && std::is_enum_v<std::remove_const_t<Leaf>>) {
        str_append(shape, static_cast<int64_t>(leaf), " ");
      } else if constexpr (std::is_const_v<Leaf>) {
        str_append(shape, leaf, " ");
      } else {
        throw invalid_argument(
            "reduce: a value that is not a tensor is the same number in every run of a traced "
            "function; return a tensor");
      }
    });
    if (shape != shapes[0]) throw invalid_argument("reduce: the replicas have returned different numbers of tensors");
  }
  T reduced = per_replica.values[0];
  size_t next = 0;
  for_each_leaf(reduced, [&]<class Leaf>(Leaf& leaf) {
    if constexpr (std::same_as<Leaf, at::Tensor>) leaf = reduce(op, leaves[next++], axis, across);
  });
  return reduced;
}

}  // namespace replicas_internal
}  // namespace muster
