#include "muster/distribute/replica_ops.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "muster/runtime/tensors.h"

namespace muster {
namespace {

using Tensors = ReplicaContext::Tensors;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ReplicaContext::meet(), of the one replica that there is where there are none.
ReplicaContext::Met meet(const std::string& what, Tensors values,
                         const std::function<Tensors(const std::vector<Tensors>& by_replica)>& how) {
  if (ReplicaContext* replica = ReplicaContext::current()) return replica->meet(what, std::move(values), how);
  ReplicaContext::Met met{.what = what, .by_replica = {std::move(values)}};
  met.result = how(met.by_replica);
  return met;
}

AcrossWorkers across() {
  const ReplicaContext* replica = ReplicaContext::current();
  return replica == nullptr ? AcrossWorkers() : replica->across();
}

int num_replicas() {
  const ReplicaContext* replica = ReplicaContext::current();
  return replica == nullptr ? 1 : replica->num_replicas();
}

int number_here() {
  const ReplicaContext* replica = ReplicaContext::current();
  return replica == nullptr ? 0 : replica->number_here();
}

// Results are each replica's own: it may write to them.
Tensors copies_of(const Tensors& shared) {
  Tensors own;
  for (const at::Tensor& tensor : shared) own.push_back(tensor.clone());
  return own;
}

void check_alike(const std::string& what, const std::vector<Tensors>& by_replica) {
  for (size_t replica = 1; replica < by_replica.size(); ++replica) {
    bool alike = by_replica[replica].size() == by_replica[0].size();
    for (size_t i = 0; alike && i < by_replica[0].size(); ++i) {
      const at::Tensor &first = by_replica[0][i], &other = by_replica[replica][i];
      if (first.sizes() == other.sizes() && first.scalar_type() == other.scalar_type()) continue;
      throw invalid_argument(what, " of ", spec_of(first).to_string(), " in the first replica of this process and ",
                             spec_of(other).to_string(), " in the one ", replica, " after it");
    }
    if (alike) continue;
    throw invalid_argument(what, " of ", by_replica[0].size(), " tensors in the first replica of this process and ",
                           by_replica[replica].size(), " in the one ", replica, " after it");
  }
}

Tensors sum_of_all(const std::string& what, const Tensors& values) {
  const AcrossWorkers others = across();
  const auto add_up = [&](const std::vector<Tensors>& by_replica) {
    check_alike(what, by_replica);
    Tensors sums = by_replica[0];
    for (size_t replica = 1; replica < by_replica.size(); ++replica) {
      for (size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i].add(by_replica[replica][i]);
    }
    return others.make_one({.purpose = what}, sums);
  };
  return copies_of(meet(what, values, add_up).result);
}

Tensors reduced(ReduceOp op, const std::string& what, const Tensors& values) {
  Tensors sums = sum_of_all(what, values);
  if (op == ReduceOp::kSum) return sums;
  for (at::Tensor& sum : sums) sum = sum.div(num_replicas());
  return sums;
}

// torch::autograd::Function knows no lists of tensors.
struct AllReduceGradient : torch::autograd::Node {
  explicit AllReduceGradient(ReduceOp o) : op(o) {}

  variable_list apply(variable_list&& gradients) override {
    for (size_t i = 0; i < gradients.size(); ++i) {
      // The loss does not depend on this one, but that of another replica may.
      if (!gradients[i].defined()) gradients[i] = input_metadata(i).zeros_like();
    }
    return reduced(op, "the gradient of all_reduce", gradients);
  }
  std::string name() const override { return "AllReduceGradient"; }

  const ReduceOp op;
};

struct AllGather : torch::autograd::Function<AllGather> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& value, int64_t axis) {
    const AcrossWorkers others = across();
    const auto put_together = [&](const std::vector<Tensors>& by_replica) {
      Tensors parts;
      for (const Tensors& given : by_replica) parts.push_back(given[0]);
      const at::Tensor own = at::cat(parts, axis);
      if (others.alone()) return Tensors{own};
      const CollectiveCall call{.kind = CollectiveKind::kAllGather, .purpose = "all_gather"};
      return Tensors{others.make_one(call, {own.movedim(axis, 0)})[0].movedim(0, axis)};
    };
    const ReplicaContext::Met met = meet("all_gather", {value}, put_together);
    int64_t before = 0, here = 0;
    for (size_t i = 0; i < met.by_replica.size(); ++i) {
      const int64_t rows = met.by_replica[i][0].size(axis);
      if (static_cast<int>(i) < number_here()) before += rows;
      here += rows;
    }
    context->saved_data["axis"] = axis;
    context->saved_data["before"] = before;
    context->saved_data["here"] = here;
    context->saved_data["rows"] = value.size(axis);
    return copies_of(met.result)[0];
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const int64_t axis = context->saved_data["axis"].toInt();
    const AcrossWorkers others = across();
    at::Tensor sum = sum_of_all("the gradient of all_gather", {gradients[0]})[0].movedim(axis, 0);
    if (!others.alone()) {
      // Each process gives as much as this one: if not, libtorch refuses here.
      sum = sum.unflatten(0, {others.size, context->saved_data["here"].toInt()}).select(0, others.rank);
    }
    const at::Tensor own = sum.narrow(0, context->saved_data["before"].toInt(), context->saved_data["rows"].toInt());
    return {own.movedim(0, axis), {}};
  }
};

// The share of each replica of this process, of the sum of all.
at::Tensor share_of_sum(const std::string& what, const at::Tensor& value) {
  const AcrossWorkers others = across();
  const auto add_up = [&](const std::vector<Tensors>& by_replica) {
    check_alike(what, by_replica);
    at::Tensor sum = by_replica[0][0];
    for (size_t replica = 1; replica < by_replica.size(); ++replica) sum = sum.add(by_replica[replica][0]);
    sum = others.make_one({.kind = CollectiveKind::kReduceScatter, .purpose = what}, {sum})[0];
    return Tensors{sum};
  };
  const int64_t rows = value.size(0) / num_replicas();
  return meet(what, {value}, add_up).result[0].narrow(0, number_here() * rows, rows).clone();
}

// Rows of all replicas of all processes: [of process, of replica, rows, …].
at::Tensor by_process_and_replica(const at::Tensor& value, int64_t processes, int64_t replicas) {
  std::vector<int64_t> sizes{processes, replicas, value.size(0) / (processes * replicas)};
  sizes.insert(sizes.end(), value.sizes().begin() + 1, value.sizes().end());
  return value.reshape(sizes);
}

at::Tensor shares_of_all(const std::string& what, const at::Tensor& value) {
  const AcrossWorkers others = across();
  const auto deal = [&](const std::vector<Tensors>& by_replica) {
    check_alike(what, by_replica);
    const auto here = static_cast<int64_t>(by_replica.size());
    Tensors given;
    for (const Tensors& each : by_replica) given.push_back(by_process_and_replica(each[0], others.size, here));
    // [to process, to replica, from replica of this process, rows, …], and then from process in the first place.
    at::Tensor dealt = at::stack(given, 2);
    const std::vector<int64_t> sizes = dealt.sizes().vec();
    const CollectiveCall call{.kind = CollectiveKind::kAllToAll, .purpose = what};
    dealt = others.make_one(call, {dealt.contiguous()})[0].view(sizes);
    Tensors results;
    for (int64_t replica = 0; replica < here; ++replica) {
      results.push_back(dealt.select(1, replica).reshape(by_replica[0][0].sizes()));
    }
    return results;
  };
  return meet(what, {value}, deal).result[static_cast<size_t>(number_here())].clone();
}

struct ReduceScatter : torch::autograd::Function<ReduceScatter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& value, int64_t op) {
    context->saved_data["op"] = op;
    const at::Tensor sum = share_of_sum("reduce_scatter", value);
    return static_cast<ReduceOp>(op) == ReduceOp::kSum ? sum : sum.div(num_replicas());
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor all = all_gather(gradients[0]);
    const bool sums = static_cast<ReduceOp>(context->saved_data["op"].toInt()) == ReduceOp::kSum;
    return {sums ? all : all.div(num_replicas()), {}};
  }
};

struct AllToAll : torch::autograd::Function<AllToAll> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& value) { return shares_of_all("all_to_all", value); }
  static variable_list backward(AutogradContext*, const variable_list& gradients) {
    return {shares_of_all("the gradient of all_to_all", gradients[0])};
  }
};

struct Broadcast : torch::autograd::Function<Broadcast> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& value, int64_t root) {
    context->saved_data["root"] = root;
    const AcrossWorkers others = across();
    const auto choose = [&](const std::vector<Tensors>& by_replica) {
      check_alike("broadcast", by_replica);
      const auto here = static_cast<int64_t>(by_replica.size());
      const CollectiveCall call{.kind = CollectiveKind::kBroadcast, .root = root / here, .purpose = "broadcast"};
      return others.make_one(call, {by_replica[static_cast<size_t>(root % here)][0]});
    };
    return meet("broadcast", {value}, choose).result[0].clone();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const at::Tensor sum = sum_of_all("the gradient of broadcast", {gradients[0]})[0];
    return {replica_id() == context->saved_data["root"].toInt() ? sum : at::zeros_like(sum), {}};
  }
};

void check_rows(const char* what, const at::Tensor& value) {
  if (!value.defined()) throw invalid_argument(what, " of an undefined tensor");
  if (value.dim() > 0 && value.size(0) % num_replicas() == 0) return;
  throw invalid_argument(what, " of ", spec_of(value).to_string(), ", which has no rows for ", num_replicas(),
                         " replicas alike");
}

void refuse_bool(const char* what, const at::Tensor& value) {
  if (!value.defined()) throw invalid_argument(what, " of an undefined tensor");
  if (value.scalar_type() != at::kBool) return;
  throw invalid_argument(what, " of bool: a sum counts, so convert it first, to(torch::kLong) or to(torch::kFloat)");
}

}  // namespace

namespace replicas_internal {

std::vector<at::Tensor> merge_call(std::vector<at::Tensor> values,
                                   const std::function<Tensors(const std::vector<Tensors>& by_replica)>& function) {
  c10::AutoGradMode no_gradients(false);
  return copies_of(meet("merge_call", std::move(values), function).result);
}

}  // namespace replicas_internal

std::vector<at::Tensor> all_reduce(ReduceOp op, const std::vector<at::Tensor>& values) {
  for (const at::Tensor& value : values) refuse_bool("all_reduce", value);
  if (values.empty()) return {};
  Tensors results;
  {
    c10::AutoGradMode no_gradients(false);
    results = reduced(op, "all_reduce", values);
  }
  Tensors differentiable;
  std::vector<size_t> places;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!torch::autograd::isDifferentiableType(values[i].scalar_type())) continue;
    differentiable.push_back(values[i]);
    places.push_back(i);
  }
  if (!torch::autograd::compute_requires_grad(differentiable)) return results;
  const std::shared_ptr<AllReduceGradient> node(new AllReduceGradient(op), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(differentiable));
  for (size_t place : places) torch::autograd::set_history(results[place], node);
  return results;
}

at::Tensor all_reduce(ReduceOp op, const at::Tensor& value) { return all_reduce(op, std::vector{value})[0]; }

at::Tensor all_gather(const at::Tensor& value, int64_t axis) {
  if (!value.defined()) throw invalid_argument("all_gather of an undefined tensor");
  if (axis < -value.dim() || axis >= value.dim()) {
    throw invalid_argument("all_gather: axis ", axis, " of ", spec_of(value).to_string(),
                           value.dim() == 0 ? "; unsqueeze a scalar first, or use all_reduce" : "");
  }
  return AllGather::apply(value, axis < 0 ? axis + value.dim() : axis);
}

at::Tensor reduce_scatter(ReduceOp op, const at::Tensor& value) {
  check_rows("reduce_scatter", value);
  refuse_bool("reduce_scatter", value);
  return ReduceScatter::apply(value, static_cast<int64_t>(op));
}

at::Tensor all_to_all(const at::Tensor& value) {
  check_rows("all_to_all", value);
  return AllToAll::apply(value);
}

at::Tensor broadcast(const at::Tensor& value, int replica) {
  if (!value.defined()) throw invalid_argument("broadcast of an undefined tensor");
  if (replica < 0 || replica >= num_replicas()) {
    throw invalid_argument("broadcast from replica ", replica, " of ", num_replicas());
  }
  return Broadcast::apply(value, int64_t{replica});
}

}  // namespace muster
