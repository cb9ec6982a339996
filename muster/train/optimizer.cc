#include "muster/train/optimizer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sqrt.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "muster/base/status.h"
#include "muster/runtime/rows/row_ops.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/tracer.h"
#include "muster/trace/variable_scope.h"

namespace muster {

void Optimizer::bind(Trained variables) {
  const std::string& name = name_;
  if (bound()) throw invalid_argument(name, ": it has variables already, the first of which is ", variables_[0].name());
  std::vector<Variable> given = std::move(variables).take();
  if (given.empty()) throw invalid_argument(name, ": no variables to optimize");
  if (Tracer::current() != nullptr) {
    throw failed_precondition("the optimizer ", name,
                              " is made inside a traced function, which would make it again, with all that it keeps, "
                              "with every trace; make it outside and use it inside");
  }
  std::set<const Variable::State*> known;
  std::vector<std::vector<Variable>> all_slots;
  for (const Variable& variable : given) {
    if (!known.insert(variable.state().get()).second) {
      throw invalid_argument(name, ": variable \"", variable.name(), "\" is there twice");
    }
    if (!variable.trainable() || !at::isFloatingType(variable.dtype())) {
      throw invalid_argument(name, ": variable \"", variable.name(), "\" (", variable.state()->spec.to_string(),
                             ") is not trainable or not of a floating-point type");
    }
    std::vector<Variable>& own = all_slots.emplace_back();
    for (const SlotRule& slot : rules_) {
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
  variables_ = std::move(given);
  slots_ = std::move(all_slots);
}

std::vector<Variable> Optimizer::slots() const {
  std::vector<Variable> all;
  for (const auto& own : slots_) all.insert(all.end(), own.begin(), own.end());
  return all;
}

void Optimizer::minimize(const at::Tensor& loss) const {
  if (!bound()) throw failed_precondition("minimize: ", name_, " has no variables yet; bind() gives it some");
  // The mean over replicas is the sum of their shares: to weigh one loss costs nothing, to divide all gradients does.
  const ReplicaContext* replica = ReplicaContext::current();
  const double share = replica == nullptr ? 1 : 1.0 / replica->num_replicas();
  const Gradients gradients = gradients_by_rows(loss, variables_, share);
  auto defined = [](const at::Tensor& gradient) { return gradient.defined(); };
  if (gradients.rows.empty() && std::none_of(gradients.dense.begin(), gradients.dense.end(), defined)) {
    throw invalid_argument("minimize: the loss depends on none of the ", variables_.size(),
                           " variables of this optimizer, the first of which is \"", variables_[0].name(), "\"");
  }
  apply(gradients, /*divisor=*/1);
}

namespace {

size_t parts_of(const Variable& variable) { return std::max<size_t>(variable.shards().size(), 1); }

// What a step writes to: the parts of a variable, or each of its copies.
size_t places_of(const Variable& variable) { return std::max(parts_of(variable), variable.copies().size()); }

Variable place_of(const Variable& variable, size_t place) {
  if (!variable.copies().empty()) return variable.copies()[place];
  return variable.shards().empty() ? variable : variable.shards()[place];
}

// The tensors of gradients in a row: for each variable the dense one, then the ids and the rows of its parts, undefined
// where there are none. Replicas need not depend on the same variables.
std::vector<at::Tensor> flat(const std::vector<Variable>& variables, const Gradients& gradients) {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < variables.size(); ++i) {
    tensors.push_back(gradients.dense[i]);
    if (const RowGradient* rows = gradients.rows_of(variables[i])) {
      tensors.insert(tensors.end(), rows->ids.begin(), rows->ids.end());
      tensors.insert(tensors.end(), rows->rows.begin(), rows->rows.end());
    } else {
      for (size_t j = 0; j < 2 * parts_of(variables[i]); ++j) tensors.emplace_back();
    }
  }
  return tensors;
}

// A message for many of them. A backward pass comes to the last variables first, and their sums need not wait for it.
void sum_in_packs(const std::vector<Variable>& variables, std::vector<at::Tensor>& gradients,
                  const AcrossWorkers& across) {
  std::vector<at::Tensor> pack;
  std::vector<size_t> places;
  int64_t bytes = 0;
  for (size_t i = gradients.size(); i-- > 0;) {
    if (gradients[i].defined()) {
      pack.push_back(gradients[i]);
      places.push_back(i);
      bytes += static_cast<int64_t>(gradients[i].nbytes());
    }
    if (pack.empty() || (i > 0 && bytes < across.bytes_per_pack)) continue;
    const std::string purpose = str_cat("gradients of variable \"", variables[places[0]].name(), "\" and others");
    const std::vector<at::Tensor> sums = across.make_one({.purpose = purpose}, pack);
    for (size_t k = 0; k < places.size(); ++k) gradients[places[k]] = sums[k];
    pack.clear();
    places.clear();
    bytes = 0;
  }
}

// The sums of the dense gradients over all replicas, by variable; undefined where there is none.
std::vector<at::Tensor> dense_sums(const std::vector<Variable>& variables,
                                   const std::vector<ReplicaContext::Tensors>& by_replica,
                                   const AcrossWorkers& across) {
  std::vector<at::Tensor> sums;
  size_t next = 0;
  for (const Variable& variable : variables) {
    at::Tensor& sum = sums.emplace_back();
    for (const ReplicaContext::Tensors& tensors : by_replica) {
      if (tensors[next].defined()) sum = sum.defined() ? sum.add(tensors[next]) : tensors[next];
    }
    next += 1 + 2 * parts_of(variable);
  }
  sum_in_packs(variables, sums, across);
  return sums;
}

// What several replicas have, added up and divided. Rows that several of them have are one row.
Gradients sum_of(const std::vector<Variable>& variables, const std::vector<ReplicaContext::Tensors>& by_replica,
                 const AcrossWorkers& across, int divisor) {
  const std::vector<at::Tensor> sums = dense_sums(variables, by_replica, across);
  auto divided = [&](const at::Tensor& sum) { return divisor == 1 || !sum.defined() ? sum : sum.div(divisor); };
  Gradients mean;
  size_t next = 0;
  for (size_t i = 0; i < variables.size(); ++i) {
    const Variable& variable = variables[i];
    at::Tensor dense = divided(sums[i]);
    ++next;
    const size_t parts = parts_of(variable);
    RowGradient row{variable};
    for (size_t p = 0; p < parts; ++p, ++next) {
      std::vector<at::Tensor> ids, rows;
      for (const ReplicaContext::Tensors& tensors : by_replica) {
        if (!tensors[next].defined()) continue;
        ids.push_back(tensors[next]);
        rows.push_back(tensors[next + parts]);
      }
      if (ids.empty()) continue;
      const std::vector<at::Tensor> all = across.make_one(
          {.kind = CollectiveKind::kAllGather, .purpose = str_cat("rows of variable \"", variable.name(), "\"")},
          {at::cat(ids), at::cat(rows)});
      auto [places, different] = rows::unique(all[0], {0, place_of(variable, p).sizes()[0]});
      row.rows.push_back(divided(rows::sum(all[1], places, different)[0]));
      row.ids.push_back(different[0]);
    }
    next += parts;
    if (!row.ids.empty() && dense.defined()) dense = as_dense(row, dense);
    if (!row.ids.empty() && !dense.defined()) mean.rows.push_back(std::move(row));
    mean.dense.push_back(std::move(dense));
  }
  return mean;
}

}  // namespace

void Optimizer::apply(const Gradients& gradients) const {
  const ReplicaContext* replica = ReplicaContext::current();
  apply(gradients, replica == nullptr ? 1 : replica->num_replicas());
}

void Optimizer::apply(const Gradients& gradients, int divisor) const {
  if (gradients.dense.size() != variables_.size()) {
    throw invalid_argument("apply: ", gradients.dense.size(), " gradients for the ", variables_.size(),
                           " variables of this optimizer");
  }
  c10::AutoGradMode no_gradients(false);
  if (ReplicaContext* replica = ReplicaContext::current(); replica != nullptr && replica->num_replicas() > 1) {
    std::vector<Variable> changed = slots();
    changed.insert(changed.end(), variables_.begin(), variables_.end());
    return replica->merge(str_cat("an optimizer of variable \"", variables_[0].name(), "\""), changed,
                          flat(variables_, gradients),
                          [this, across = replica->across(), divisor](const auto& by_replica) {
                            c10::AutoGradMode no_gradients_either(false);
                            apply_here(sums_for_places(by_replica, across, divisor));
                          });
  }
  for (const Variable& variable : variables_) {
    if (!variable.state()->in_step) continue;
    throw failed_precondition("an optimizer of variable \"", variable.name(),
                              "\" takes a step outside of strategy.run(): every worker would change its own copy only");
  }
  apply_here({gradients});
}

std::vector<Gradients> Optimizer::sums_for_places(const std::vector<std::vector<at::Tensor>>& by_replica,
                                                  const AcrossWorkers& across, int divisor) const {
  // Of two, each adds up for itself, at the same time: less than one that adds and one that waits for it.
  const bool each_for_itself = by_replica.size() == 2 && across.size == 1 && variables_[0].copies().size() == 2;
  std::vector<Gradients> sums;
  for (size_t p = 0; p < (each_for_itself ? 2 : 1); ++p) {
    std::optional<DeviceScope> there;
    if (each_for_itself) there.emplace(place_of(variables_[0], p).device());
    sums.push_back(sum_of(variables_, by_replica, across, divisor));
  }
  return sums;
}

void Optimizer::apply_here(const std::vector<Gradients>& for_places) const {
  for (size_t i = 0; i < variables_.size(); ++i) {
    const Variable& variable = variables_[i];
    at::Tensor dense;
    const RowGradient* rows = nullptr;
    const size_t parts = parts_of(variable), places = places_of(variable);
    int64_t first = 0;
    for (size_t p = 0; p < places; ++p) {
      if (p < for_places.size()) {
        dense = for_places[p].dense[i];
        rows = for_places[p].rows_of(variable);
        if (rows != nullptr && dense.defined()) dense = as_dense(*std::exchange(rows, nullptr), dense);
      }
      if (!dense.defined() && rows == nullptr) break;  // the loss does not depend on it
      const Variable own = place_of(variable, p);
      const size_t part = parts == 1 ? 0 : p;
      const int64_t count = own.sizes().empty() ? 0 : own.sizes()[0];
      // What is cut off for this part is cut before it travels.
      const at::Tensor gradient =
          rows != nullptr ? rows->rows[part] : (parts == 1 ? dense : dense.narrow(0, first, count));
      first += count;
      DeviceScope there(own.device());
      std::vector<at::Tensor> slots;
      for (const Variable& slot : slots_[i]) slots.push_back(place_of(slot, p).memory());
      rows != nullptr ? update_rows(own.memory(), std::move(slots), rows->ids[part], gradient)
                      : update(own.memory(), std::move(slots), gradient);
    }
  }
}

namespace {

// Of one option of a rule.
void expect(const char* option, double value, bool holds, const char* expected) {
  if (!holds) throw invalid_argument(option, " is ", value, ", expected ", expected);
}

void expect_not_negative(const char* option, double value) { expect(option, value, value >= 0, "0 or more"); }

}  // namespace

// ---- SGD
Sgd::Sgd(SgdOptions options)
    : Optimizer("sgd", options.momentum == 0 ? std::vector<SlotRule>{} : std::vector<SlotRule>{{.name = "momentum"}}),
      options_(options) {
  expect_not_negative("sgd: learning_rate", options.learning_rate);
  expect_not_negative("sgd: momentum", options.momentum);
  expect_not_negative("sgd: weight_decay", options.weight_decay);
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

namespace {

// The gradient of rows with that of their squares, as far as they decay.
at::Tensor with_decay(const at::Tensor& value, const at::Tensor& ids, const at::Tensor& gradient, double weight_decay) {
  return weight_decay == 0 ? gradient : gradient.add(rows::gather(value, ids), weight_decay);
}

}  // namespace

void Sgd::update_rows(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& ids,
                      const at::Tensor& given) const {
  at::Tensor gradient = with_decay(value, ids, given, options_.weight_decay);
  if (!slots.empty()) {
    const at::Tensor momentum = rows::gather(slots[0], ids).mul_(options_.momentum).add_(gradient);
    rows::scatter_(slots[0], ids, momentum, "update");
    gradient = options_.nesterov ? gradient.add(momentum, options_.momentum) : momentum;
  }
  rows::add_(value, ids, gradient, -options_.learning_rate);
}

// ---- Adagrad
Adagrad::Adagrad(AdagradOptions options)
    : Optimizer("adagrad", {{.name = "sums", .initial = options.initial_accumulator}}), options_(options) {
  expect_not_negative("adagrad: learning_rate", options.learning_rate);
  expect_not_negative("adagrad: initial_accumulator", options.initial_accumulator);
  expect_not_negative("adagrad: epsilon", options.epsilon);
}

void Adagrad::update(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& gradient) const {
  slots[0].addcmul_(gradient, gradient);
  value.addcdiv_(gradient, slots[0].sqrt().add_(options_.epsilon), -options_.learning_rate);
}

void Adagrad::update_rows(at::Tensor value, std::vector<at::Tensor> slots, const at::Tensor& ids,
                          const at::Tensor& gradient) const {
  rows::adagrad_(value, slots[0], ids, gradient, options_.learning_rate, options_.epsilon);
}

// ---- Adam
Adam::Adam(const std::string& name, AdamOptions options, bool decoupled)
    : Optimizer(name, {{.name = "mean"}, {.name = "variance"}, {.name = "steps", .scalar = true}}),
      options_(options),
      decoupled_(decoupled) {
  expect_not_negative((name + ": learning_rate").c_str(), options.learning_rate);
  expect_not_negative((name + ": epsilon").c_str(), options.epsilon);
  expect_not_negative((name + ": weight_decay").c_str(), options.weight_decay);
  for (const auto& [option, beta] : {std::pair(": beta1", options.beta1), std::pair(": beta2", options.beta2)}) {
    expect((name + option).c_str(), beta, beta >= 0 && beta < 1, "0 or more and less than 1");
  }
}

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
                       const at::Tensor& given) const {
  const at::Tensor gradient = with_decay(value, ids, given, decoupled_ ? 0.0 : options_.weight_decay);
  slots[2].add_(1);
  rows::adam_(value, slots[0], slots[1], slots[2], ids, gradient, options_.learning_rate, options_.beta1,
              options_.beta2, options_.epsilon, decoupled_ ? options_.weight_decay : 0.0);
}

}  // namespace muster
