// What one replica asks of all of them, inside of strategy.run(). Everywhere else there is one replica.
#pragma once

#include <ATen/core/Tensor.h>

#include <type_traits>
#include <vector>

#include "muster/distribute/replicas.h"
#include "muster/trace/replica_context.h"

namespace muster {

// The sum, the mean, the least or the most of what all replicas give, for each of them; the same bits for all.
// Gradients pass, but for the least and the most: that by a value is the sum (or the mean) of the gradients by the
// result of all replicas. Of bool the least is whether all are true, the most whether any is. All replicas ask for the
// same things in the same order; Error{kFailedPrecondition} if one does not, and inside of control flow in one of
// several replicas of a process: control flow goes around strategy.run(). Error{kInvalidArgument} for values of
// different shapes or types.
at::Tensor all_reduce(ReduceOp op, const at::Tensor& value);
std::vector<at::Tensor> all_reduce(ReduceOp op, const std::vector<at::Tensor>& values);  // in one message

// The same for one of them; the others get zeros.
at::Tensor reduce_to(ReduceOp op, const at::Tensor& value, int replica = 0);

// What all replicas give, after each other along an axis, in the order of their ids; differentiable as above. The other
// dimensions are the same for all. Limit: where processes give different numbers of rows, the result has them all, but
// its size() while a function is traced is that which all would have if they had as many as this one.
at::Tensor all_gather(const at::Tensor& value, int64_t axis = 0);

// Each replica's share of the rows of the sum, the mean, the least or the most, in the order of their ids; as many rows
// for each. That is all_reduce for a replica that needs only a share, and gives each as many bytes less.
at::Tensor reduce_scatter(ReduceOp op, const at::Tensor& value);
// The first share of the rows goes to the first replica, and so on; what each gets of all comes after each other.
at::Tensor all_to_all(const at::Tensor& value);
// What one replica gives, for all. The others give something of that shape, whose gradient is zero.
at::Tensor broadcast(const at::Tensor& value, int replica = 0);

namespace replicas_internal {

std::vector<at::Tensor> merge_call(
    std::vector<at::Tensor> values,
    const std::function<std::vector<at::Tensor>(const std::vector<ReplicaContext::Tensors>& by_replica)>& function);

}  // namespace replicas_internal

// Calls `function` once for all replicas of this process, when all of them have come to it, with a
// PerReplica<at::Tensor> for each value; returns the tensor that it returns, if it does, to each of them. What it
// writes to variables is written then, as outside of strategy.run(). Gradients do not pass.
//   auto total = merge_call([&](const PerReplica<at::Tensor>& x) { return strategy.reduce(ReduceOp::kSum, x); }, x);
template <class F, class... Tensors>
  requires(std::is_convertible_v<const Tensors&, at::Tensor> && ...)
auto merge_call(const F& function, const Tensors&... values) {
  using Result = std::invoke_result_t<const F&, decltype((void(values), PerReplica<at::Tensor>()))...>;
  static_assert(std::is_void_v<Result> || std::is_same_v<Result, at::Tensor>,
                "what merge_call calls returns an at::Tensor or nothing");
  const auto results = replicas_internal::merge_call(
      {at::Tensor(values)...}, [&](const std::vector<ReplicaContext::Tensors>& by_replica) {
        size_t number = 0;
        auto of_each = [&](const at::Tensor&) {
          PerReplica<at::Tensor> each;
          for (const ReplicaContext::Tensors& given : by_replica) each.values.push_back(given[number]);
          ++number;
          return each;
        };
        std::tuple arguments{of_each(values)...};  // in their order
        if constexpr (std::is_void_v<Result>) {
          std::apply(function, arguments);
          return std::vector<at::Tensor>();
        } else {
          return std::vector<at::Tensor>{std::apply(function, arguments)};
        }
      });
  if constexpr (!std::is_void_v<Result>) return results[0];
}

}  // namespace muster
