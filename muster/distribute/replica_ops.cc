#include "muster/distribute/replica_ops.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

using replicas_internal::combined;
using replicas_internal::in_words;
using replicas_internal::mean_as;
using replicas_internal::operand;
using replicas_internal::reduction_of;
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

// What the replicas of this process give, as one.
Tensors one_of(ReduceOp op, const std::string& what, const std::vector<Tensors>& by_replica) {
  check_alike(what, by_replica);
  Tensors all;
  for (const at::Tensor& value : by_replica[0]) all.push_back(operand(op, value));
  for (size_t replica = 1; replica < by_replica.size(); ++replica) {
    for (size_t i = 0; i < all.size(); ++i) all[i] = combined(op, all[i], operand(op, by_replica[replica][i]));
  }
  return all;
}

// Throws Error{kInvalidArgument} for what is no sum of its operands.
void check_has_gradient(ReduceOp op, const std::string& what) {
  if (op == ReduceOp::kSum || op == ReduceOp::kMean) return;
  throw invalid_argument(what, " has no gradient; differentiate by what it is made of, or detach() what it is given");
}

// Of which strategy.run() a gradient is, and of which of its meetings. Who takes part in the gradient is who took part
// then.
struct Origin {
  uint64_t step = 0;
  int64_t replicas = 1, number = 0;

  static Origin of(const ReplicaContext::Met& met) {
    const ReplicaContext* replica = ReplicaContext::current();
    return {replica == nullptr ? 0 : replica->step(), num_replicas(), static_cast<int64_t>(met.number)};
  }
  static Origin from(AutogradContext* context) {
    return {static_cast<uint64_t>(context->saved_data["step"].toInt()), context->saved_data["replicas"].toInt(),
            context->saved_data["number"].toInt()};
  }
  void save(AutogradContext* context) const {
    context->saved_data["step"] = static_cast<int64_t>(step);
    context->saved_data["replicas"] = replicas;
    context->saved_data["number"] = number;
  }
  // Throws Error{kFailedPrecondition} if this is another strategy.run(), or none.
  std::string gradient_of(const std::string& what) const {
    const ReplicaContext* replica = ReplicaContext::current();
    const uint64_t now = replica == nullptr ? 0 : replica->step();
    if (now != step && (replicas > 1 || num_replicas() > 1)) {
      throw failed_precondition("the gradient of ", what, " is asked for ",
                                now == 0 ? "outside of strategy.run()" : "in another strategy.run()",
                                ", where its other replicas are not; call backward() where ", what, " was called");
    }
    return str_cat("the gradient of ", what, ", number ", number);
  }
};

Tensors reduce_all(ReduceOp op, const std::string& what, const Tensors& values);

// torch::autograd::Function knows no lists of tensors.
struct AllReduceGradient : torch::autograd::Node {
  AllReduceGradient(ReduceOp o, std::string w, const Origin& from) : op(o), what(std::move(w)), origin(from) {}

  variable_list apply(variable_list&& gradients) override {
    check_has_gradient(op, what);
    for (size_t i = 0; i < gradients.size(); ++i) {
      // The loss does not depend on this one, but that of another replica may.
      if (!gradients[i].defined()) gradients[i] = input_metadata(i).zeros_like();
    }
    return reduce_all(op, origin.gradient_of(what), gradients);
  }
  std::string name() const override { return "AllReduceGradient"; }

  const ReduceOp op;
  const std::string what;
  const Origin origin;
};

Tensors reduce_all(ReduceOp op, const std::string& what, const Tensors& values) {
  const AcrossWorkers others = across();
  const auto add_up = [&](const std::vector<Tensors>& by_replica) {
    return others.make_one({.reduction = reduction_of(op), .purpose = what}, one_of(op, what, by_replica));
  };
  Tensors results;
  Origin origin;
  {
    c10::AutoGradMode no_gradients(false);
    const ReplicaContext::Met met = meet(what, values, add_up);
    origin = Origin::of(met);
    results = copies_of(met.result);
    note_alike(results);
    for (size_t i = 0; op == ReduceOp::kMean && i < results.size(); ++i) {
      results[i] = mean_as(values[i].scalar_type(), results[i].div(num_replicas()));
    }
  }
  Tensors differentiable;
  std::vector<size_t> places;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!torch::autograd::isDifferentiableType(values[i].scalar_type())) continue;
    differentiable.push_back(values[i]);
    places.push_back(i);
  }
  if (!torch::autograd::compute_requires_grad(differentiable)) return results;
  const std::shared_ptr<AllReduceGradient> node(new AllReduceGradient(op, what, origin), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(differentiable));
  for (size_t place : places) torch::autograd::set_history(results[place], node);
  return results;
}

struct AllGather : torch::autograd::Function<AllGather> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& value, int64_t axis) {
    const std::string what = words_of(axis);
    const AcrossWorkers others = across();
    const auto put_together = [&](const std::vector<Tensors>& by_replica) {
      Tensors parts;
      for (const Tensors& given : by_replica) parts.push_back(given[0]);
      const at::Tensor own = at::cat(parts, axis);
      if (others.alone()) return Tensors{own};
      const CollectiveCall call{.kind = CollectiveKind::kAllGather, .purpose = what};
      return Tensors{others.make_one(call, {own.movedim(axis, 0)})[0].movedim(0, axis)};
    };
    const ReplicaContext::Met met = meet(what, {value}, put_together);
    int64_t before = 0, here = 0;
    for (size_t i = 0; i < met.by_replica.size(); ++i) {
      const int64_t rows = met.by_replica[i][0].size(axis);
      if (static_cast<int>(i) < number_here()) before += rows;
      here += rows;
    }
    Origin::of(met).save(context);
    context->saved_data["axis"] = axis;
    context->saved_data["before"] = before;
    context->saved_data["here"] = here;
    context->saved_data["rows"] = value.size(axis);
    const Tensors result = copies_of(met.result);
    note_alike(result);
    return result[0];
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const int64_t axis = context->saved_data["axis"].toInt();
    const AcrossWorkers others = across();
    const std::string what = Origin::from(context).gradient_of(words_of(axis));
    at::Tensor sum = reduce_all(ReduceOp::kSum, what, {gradients[0]})[0].movedim(axis, 0);
    if (!others.alone()) {
      // Each process gives as much as this one: if not, libtorch refuses here.
      sum = sum.unflatten(0, {others.size, context->saved_data["here"].toInt()}).select(0, others.rank);
    }
    const at::Tensor own = sum.narrow(0, context->saved_data["before"].toInt(), context->saved_data["rows"].toInt());
    return {own.movedim(0, axis), {}};
  }
  static std::string words_of(int64_t axis) { return str_cat("all_gather along axis ", axis); }
};

// The share of this replica of the sum of all.
struct ReduceScatter : torch::autograd::Function<ReduceScatter> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& value, int64_t op) {
    const std::string what = words_of(op);
    const AcrossWorkers others = across();
    const auto add_up = [&](const std::vector<Tensors>& by_replica) {
      const auto how = static_cast<ReduceOp>(op);
      return others.make_one({.kind = CollectiveKind::kReduceScatter, .reduction = reduction_of(how), .purpose = what},
                             one_of(how, what, by_replica));
    };
    const ReplicaContext::Met met = meet(what, {value}, add_up);
    Origin::of(met).save(context);
    context->saved_data["op"] = op;
    const int64_t rows = value.size(0) / num_replicas();
    const at::Tensor own = met.result[0].narrow(0, number_here() * rows, rows).clone();
    return static_cast<ReduceOp>(op) == ReduceOp::kMean ? mean_as(value.scalar_type(), own.div(num_replicas())) : own;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const int64_t op = context->saved_data["op"].toInt();
    check_has_gradient(static_cast<ReduceOp>(op), words_of(op));
    static_cast<void>(Origin::from(context).gradient_of(words_of(op)));
    const at::Tensor all = all_gather(gradients[0]);
    return {static_cast<ReduceOp>(op) == ReduceOp::kMean ? all.div(num_replicas()) : all, {}};
  }
  static std::string words_of(int64_t op) {
    return str_cat("reduce_scatter(", in_words(static_cast<ReduceOp>(op)), ")");
  }
};

// Rows of all replicas of all processes: [of process, of replica, rows, …].
at::Tensor by_process_and_replica(const at::Tensor& value, int64_t processes, int64_t replicas) {
  std::vector<int64_t> sizes{processes, replicas, value.size(0) / (processes * replicas)};
  sizes.insert(sizes.end(), value.sizes().begin() + 1, value.sizes().end());
  return value.reshape(sizes);
}

struct AllToAll : torch::autograd::Function<AllToAll> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& value) {
    const AcrossWorkers others = across();
    const auto deal = [&](const std::vector<Tensors>& by_replica) {
      check_alike("all_to_all", by_replica);
      const auto here = static_cast<int64_t>(by_replica.size());
      Tensors given;
      for (const Tensors& each : by_replica) given.push_back(by_process_and_replica(each[0], others.size, here));
      // [to process, to replica, from replica of this process, rows, …], and then from process in the first place.
      at::Tensor dealt = at::stack(given, 2);
      const std::vector<int64_t> sizes = dealt.sizes().vec();
      const CollectiveCall call{.kind = CollectiveKind::kAllToAll, .purpose = "all_to_all"};
      dealt = others.make_one(call, {dealt.contiguous()})[0].view(sizes);
      Tensors results;
      for (int64_t replica = 0; replica < here; ++replica) {
        results.push_back(dealt.select(1, replica).reshape(by_replica[0][0].sizes()));
      }
      return results;
    };
    const ReplicaContext::Met met = meet("all_to_all", {value}, deal);
    Origin::of(met).save(context);
    return met.result[static_cast<size_t>(number_here())].clone();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    static_cast<void>(Origin::from(context).gradient_of("all_to_all"));
    return {AllToAll::apply(gradients[0])};
  }
};

// What one replica gives.
ReplicaContext::Met from_one(const std::string& what, int64_t root, const at::Tensor& value) {
  const AcrossWorkers others = across();
  const auto choose = [&](const std::vector<Tensors>& by_replica) {
    check_alike(what, by_replica);
    const auto here = static_cast<int64_t>(by_replica.size());
    const CollectiveCall call{.kind = CollectiveKind::kBroadcast, .root = root / here, .purpose = what};
    return others.make_one(call, {by_replica[static_cast<size_t>(root % here)][0]});
  };
  return meet(what, {value}, choose);
}

struct Broadcast : torch::autograd::Function<Broadcast> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& value, int64_t root) {
    const ReplicaContext::Met met = from_one(words_of(root), root, value);
    Origin::of(met).save(context);
    context->saved_data["root"] = root;
    const Tensors result = copies_of(met.result);
    note_alike(result);
    return result[0];
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const int64_t root = context->saved_data["root"].toInt();
    const std::string what = Origin::from(context).gradient_of(words_of(root));
    const at::Tensor sum = reduce_all(ReduceOp::kSum, what, {gradients[0]})[0];
    return {replica_id() == root ? sum : at::zeros_like(sum), {}};
  }
  static std::string words_of(int64_t root) { return str_cat("broadcast from replica ", root); }
};

// What all give as one, for one of them.
struct ReduceTo : torch::autograd::Function<ReduceTo> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& value, int64_t op, int64_t root) {
    const std::string what = words_of(op, root);
    const auto how = static_cast<ReduceOp>(op);
    const AcrossWorkers others = across();
    const auto put_together = [&](const std::vector<Tensors>& by_replica) {
      const CollectiveCall call{.kind = CollectiveKind::kReduce,
                                .reduction = reduction_of(how),
                                .root = root / static_cast<int64_t>(by_replica.size()),
                                .purpose = what};
      return others.make_one(call, one_of(how, what, by_replica));
    };
    const ReplicaContext::Met met = meet(what, {value}, put_together);
    Origin::of(met).save(context);
    context->saved_data["op"] = op;
    context->saved_data["root"] = root;
    const bool divides = how == ReduceOp::kMean;  // which of whole numbers makes fractions, zeros too
    const at::Tensor all = divides ? mean_as(value.scalar_type(), met.result[0].div(num_replicas())) : met.result[0];
    if (replica_id() != root) return at::zeros_like(all);
    return divides ? all : all.clone();
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const int64_t op = context->saved_data["op"].toInt(), root = context->saved_data["root"].toInt();
    const auto how = static_cast<ReduceOp>(op);
    check_has_gradient(how, words_of(op, root));
    const std::string what = Origin::from(context).gradient_of(words_of(op, root));
    const at::Tensor of_root = from_one(what, root, gradients[0]).result[0].clone();
    return {how == ReduceOp::kMean ? of_root.div(num_replicas()) : of_root, {}, {}};
  }
  static std::string words_of(int64_t op, int64_t root) {
    return str_cat("reduce_to(", in_words(static_cast<ReduceOp>(op)), ", replica ", root, ")");
  }
};

void check_replica(const char* what, int replica) {
  if (replica >= 0 && replica < num_replicas()) return;
  throw invalid_argument(what, " replica ", replica, " of ", num_replicas());
}

void check_rows(const char* what, const at::Tensor& value) {
  if (!value.defined()) throw invalid_argument(what, " of an undefined tensor");
  if (value.dim() > 0 && value.size(0) % num_replicas() == 0) return;
  throw invalid_argument(what, " of ", spec_of(value).to_string(), ", which has no rows for ", num_replicas(),
                         " replicas alike");
}

void refuse_bool(const char* what, ReduceOp op, const at::Tensor& value) {
  if (!value.defined()) throw invalid_argument(what, " of an undefined tensor");
  if (value.scalar_type() != at::kBool || op == ReduceOp::kMin || op == ReduceOp::kMax) return;
  throw invalid_argument(what,
                         " of bool: a sum counts, so convert it first, to(torch::kLong) or to(torch::kFloat); kMin is "
                         "whether all are true, kMax whether any is");
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
  for (const at::Tensor& value : values) refuse_bool("all_reduce", op, value);
  if (values.empty()) return {};
  return reduce_all(op, str_cat("all_reduce(", in_words(op), ")"), values);
}

at::Tensor all_reduce(ReduceOp op, const at::Tensor& value) { return all_reduce(op, std::vector{value})[0]; }

at::Tensor reduce_to(ReduceOp op, const at::Tensor& value, int replica) {
  refuse_bool("reduce_to", op, value);
  check_replica("reduce_to", replica);
  return ReduceTo::apply(value, static_cast<int64_t>(op), int64_t{replica});
}

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
  refuse_bool("reduce_scatter", op, value);
  return ReduceScatter::apply(value, static_cast<int64_t>(op));
}

at::Tensor all_to_all(const at::Tensor& value) {
  check_rows("all_to_all", value);
  return AllToAll::apply(value);
}

at::Tensor broadcast(const at::Tensor& value, int replica) {
  if (!value.defined()) throw invalid_argument("broadcast of an undefined tensor");
  check_replica("broadcast from", replica);
  return Broadcast::apply(value, int64_t{replica});
}

}  // namespace muster
