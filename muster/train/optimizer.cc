#include "muster/train/optimizer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sqrt.h>
#include <c10/core/GradMode.h>

#include "muster/base/status.h"
#include "muster/runtime/row_ops.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/variable_scope.h"

namespace muster {

Optimizer::Optimizer(std::string name, std::vector<Variable> variables, const std::vector<SlotRule>& slots)
    : variables_(std::move(variables)) {
  if (variables_.empty()) throw invalid_argument(name, ": no variables to optimize");
  for (const Variable& variable : variables_) {
    if (!variable.trainable() || !at::isFloatingType(variable.dtype())) {
      throw invalid_argument(name, ": variable \"", variable.name(), "\" (", variable.state()->spec.to_string(),
                             ") is not trainable or not of a floating-point type");
    }
    std::vector<Variable>& own = slots_.emplace_back();
    for (const SlotRule& slot : slots) {
      const at::ScalarType dtype = slot.scalar ? at::kDouble : variable.dtype();
      own.push_back(make_beside(
          variable, str_cat(variable.name(), "/", name, "/", slot.name),
          [&](const std::vector<int64_t>& sizes) {
            const InitialValue all =
                InitialValue::constant(slot.scalar ? std::vector<int64_t>{1} : sizes, slot.initial, dtype);
            return variable.state()->on_demand && !slot.scalar ? all.on_demand() : all;
          },
          /*alike=*/slot.scalar));
    }
  }
}

std::vector<Variable> Optimizer::slots() const {
  std::vector<Variable> all;
  for (const auto& own : slots_) all.insert(all.end(), own.begin(), own.end());
  return all;
}

namespace {

// The tensors of gradients in a row, and back.
std::vector<at::Tensor> flat(const Gradients& gradients) {
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& dense : gradients.dense) {
    if (dense.defined()) tensors.push_back(dense);
  }
  for (const RowGradient& row : gradients.rows) {
    tensors.insert(tensors.end(), row.ids.begin(), row.ids.end());
    tensors.insert(tensors.end(), row.rows.begin(), row.rows.end());
  }
  return tensors;
}

// The sum of the gradients of several replicas, of which `like` is one. Rows that several of them have are one row.
Gradients sum_of(const Gradients& like, const std::vector<ReplicaContext::Tensors>& by_replica) {
  Gradients sum = like;
  size_t next = 0;
  for (at::Tensor& dense : sum.dense) {
    if (!dense.defined()) continue;
    dense = by_replica[0][next];
    for (size_t i = 1; i < by_replica.size(); ++i) dense = dense.add(by_replica[i][next]);
    ++next;
  }
  for (RowGradient& row : sum.rows) {
    const size_t parts = row.ids.size();
    for (size_t p = 0; p < parts; ++p, ++next) {
      std::vector<at::Tensor> ids, rows;
      for (const ReplicaContext::Tensors& tensors : by_replica) {
        ids.push_back(tensors[next]);
        rows.push_back(tensors[next + parts]);
      }
      const Variable part = row.table.shards().empty() ? row.table : row.table.shards()[p];
      auto [places, different] = rows::unique(at::cat(ids), {0, part.sizes()[0]});
      row.rows[p] = rows::sum(at::cat(rows), places, different)[0];
      row.ids[p] = different[0];
    }
    next += parts;
  }
  return sum;
}

}  // namespace

void Optimizer::apply(const Gradients& gradients) const {
  c10::AutoGradMode no_gradients(false);
  if (ReplicaContext* replica = ReplicaContext::current(); replica != nullptr && replica->num_replicas() > 1) {
    std::vector<Variable> changed = slots();
    changed.insert(changed.end(), variables_.begin(), variables_.end());
    return replica->merge(str_cat("an optimizer of variable \"", variables_[0].name(), "\""), changed, flat(gradients),
                          [this, gradients](const auto& by_replica) {
                            c10::AutoGradMode no_gradients_either(false);
                            apply(sum_of(gradients, by_replica));
                          });
  }
  auto part = [](const Variable& variable, size_t i) {
    return variable.shards().empty() ? variable : variable.shards()[i];
  };
  size_t next_rows = 0;
  for (size_t i = 0; i < variables_.size(); ++i) {
    const Variable& variable = variables_[i];
    const size_t parts = std::max<size_t>(variable.shards().size(), 1);
    const bool by_rows = !gradients.dense[i].defined();
    const RowGradient* rows = by_rows ? &gradients.rows[next_rows++] : nullptr;
    int64_t first = 0;
    for (size_t p = 0; p < parts; ++p) {
      const Variable own = part(variable, p);
      const int64_t count = own.sizes().empty() ? 0 : own.sizes()[0];
      // What is cut off for this part is cut before it travels.
      const at::Tensor gradient =
          by_rows ? rows->rows[p] : (parts == 1 ? gradients.dense[i] : gradients.dense[i].narrow(0, first, count));
      first += count;
      DeviceScope there(own.device());
      std::vector<at::Tensor> slots;
      for (const Variable& slot : slots_[i]) slots.push_back(part(slot, p).memory());
      by_rows ? update_rows(own.memory(), std::move(slots), rows->ids[p], gradient)
              : update(own.memory(), std::move(slots), gradient);
    }
  }
}

// ---- SGD
Sgd::Sgd(std::vector<Variable> variables, SgdOptions options)
    : Optimizer("sgd", std::move(variables),
                options.momentum == 0 ? std::vector<SlotRule>{} : std::vector<SlotRule>{{.name = "momentum"}}),
      options_(options) {
  if (options.nesterov && options.momentum <= 0) {
    throw invalid_argument("sgd: nesterov needs a momentum, got ", options.momentum);
  }
}

void Sgd::update(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& given) const {
  at::Tensor gradient = options_.weight_decay == 0 ? given : given.add(value, options_.weight_decay);
  if (!slots.empty()) {
    slots[0].mul_(options_.momentum).add_(gradient);
    gradient = options_.nesterov ? gradient.add(slots[0], options_.momentum) : slots[0];
  }
  value.sub_(gradient, options_.learning_rate);
}

void Sgd::update_rows(at::Tensor value, std::vector<at::Tensor>, const at::Tensor& ids,
                      const at::Tensor& gradient) const {
  rows::add_(value, ids, gradient, -options_.learning_rate);
}

// ---- Adagrad
Adagrad::Adagrad(std::vector<Variable> variables, AdagradOptions options)
    : Optimizer("adagrad", std::move(variables), {{.name = "sums", .initial = options.initial_accumulator}}),
      options_(options) {}

void Adagrad::update(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& gradient) const {
  slots[0].addcmul_(gradient, gradient);
  value.addcdiv_(gradient, slots[0].sqrt().add_(options_.epsilon), -options_.learning_rate);
}

void Adagrad::update_rows(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& ids,
                          const at::Tensor& gradient) const {
  rows::adagrad_(value, slots[0], ids, gradient, options_.learning_rate, options_.epsilon);
}

// ---- Adam
Adam::Adam(const std::string& name, std::vector<Variable> variables, AdamOptions options, bool decoupled)
    : Optimizer(name, std::move(variables),
                {{.name = "mean"}, {.name = "variance"}, {.name = "steps", .scalar = true}}),
      options_(options),
      decoupled_(decoupled) {}

void Adam::update(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& given) const {
  const double rate = options_.learning_rate;
  at::Tensor gradient = given;
  if (options_.weight_decay != 0) {
    if (decoupled_) {
      value.mul_(1 - rate * options_.weight_decay);
    } else {
      gradient = given.add(value, options_.weight_decay);
    }
  }
  slots[2].add_(1);
  slots[0].lerp_(gradient, 1 - options_.beta1);
  slots[1].mul_(options_.beta2).addcmul_(gradient, gradient, 1 - options_.beta2);
  // The count of steps is a tensor, so what depends on it is, too.
  const at::Tensor steps = slots[2].reshape({});
  const at::Tensor correction1 = at::pow(options_.beta1, steps).neg_().add_(1);
  const at::Tensor correction2 = at::pow(options_.beta2, steps).neg_().add_(1).sqrt_();
  const at::Tensor denominator = slots[1].sqrt().div_(correction2).add_(options_.epsilon);
  value.sub_(slots[0].div(denominator).mul_(correction1.reciprocal().mul_(rate)));
}

void Adam::update_rows(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& ids,
                       const at::Tensor& gradient) const {
  slots[2].add_(1);
  rows::adam_(value, slots[0], slots[1], slots[2], ids, gradient, options_.learning_rate, options_.beta1,
              options_.beta2, options_.epsilon, decoupled_ ? options_.weight_decay : 0.0);
}

}  // namespace muster
