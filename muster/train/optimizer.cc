#include "muster/train/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <absl/strings/str_join.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/runtime/executor/step_ops.h"
#include "muster/runtime/rows/row_ops.h"
#include "muster/trace/device_scope.h"
#include "muster/trace/replica_context.h"
#include "muster/trace/tracer/tracer.h"
#include "muster/trace/variable_scope.h"
#include "muster/train/clipping.h"
#include "muster/train/rule_options.h"

namespace muster {

using step_ops::wait_for_;

Optimizer::Optimizer(Rule rule) : rule_(std::move(rule)) {
  const std::string& name = rule_.name;
  const double rate = rule_.learning_rate.initial();
  expect_not_negative(name, "learning_rate", rate);
  if (std::isinf(rate)) throw invalid_argument(name, ": learning_rate is ", rate, ", expected 0 or more");
  expect_not_negative(name, "weight_decay", rule_.weight_decay);
  const UpdateOptions& all = rule_.all;
  check(all.clipping);
  if (all.average) expect_share(name, "average", *all.average);
  for (const ParameterGroup& group : all.groups) {
    expect_not_negative(name, "rate_factor of a group", group.rate_factor);
    if (group.weight_decay) expect_not_negative(name, "weight_decay of a group", *group.weight_decay);
    if (group.learning_rate) {
      expect_not_negative(name, "learning_rate of a group", group.learning_rate->initial());
      if (rate == 0 || std::isinf(group.learning_rate->initial())) {
        throw invalid_argument(name, ": group \"", group.names, "\" has the learning_rate ",
                               group.learning_rate->initial(), " where that of the optimizer is ", rate,
                               ", expected finite ones, and more than 0 for the optimizer; a rate_factor of 0 keeps ",
                               "variables as they are");
      }
    }
    try {
      const std::regex pattern(group.names);
    } catch (const std::regex_error& error) {
      throw invalid_argument(name, ": group \"", group.names, "\" is no regular expression: ", error.what());
    }
  }
}

const ParameterGroup* Optimizer::group_of(const Own& own) const {
  return own.group ? &rule_.all.groups[*own.group] : nullptr;
}

Optimizer::Own Optimizer::own_of(const Variable& variable, std::optional<size_t> group) const {
  Own own{.slots = {}, .lag = {}, .group = group, .weight_decay = rule_.weight_decay};
  if (!rule_.all.decay_vectors && variable.sizes().size() < 2) own.weight_decay = 0;
  if (group) own.weight_decay = group_of(own)->weight_decay.value_or(own.weight_decay);
  auto beside = [&](const SlotRule& slot, at::ScalarType dtype) {
    return make_beside(
        variable, str_cat(variable.name(), "/", rule_.name, "/", slot.name),
        [&](const std::vector<int64_t>& sizes) {
          const InitialValue all =
              InitialValue::constant(slot.scalar ? std::vector<int64_t>{1} : sizes, slot.initial, dtype);
          return variable.state()->on_demand && !slot.scalar ? all.on_demand() : all;
        },
        /*alike=*/slot.scalar);
  };
  for (const SlotRule& slot : rule_.slots) {
    own.slots.push_back(beside(slot, slot.scalar ? at::kDouble : variable.dtype()));
  }
  // Not the mean itself: 0 is right for whatever has not been trained yet, wherever its value comes from. Of half the
  // digits a mean would stand still: 0.999 is 1 in bfloat16.
  const at::ScalarType exact = variable.dtype() == at::kDouble ? at::kDouble : at::kFloat;
  if (rule_.all.average) own.lag = beside({.name = "average_less_value"}, exact);
  return own;
}

void Optimizer::bind(Trained variables) {
  const std::string& name = rule_.name;
  if (bound()) throw invalid_argument(name, ": it has variables already, the first of which is ", variables_[0].name());
  std::vector<Variable> given = std::move(variables).take();
  if (given.empty()) throw invalid_argument(name, ": no variables to optimize");
  if (Tracer::current() != nullptr) {
    throw failed_precondition("the optimizer ", name,
                              " is made inside a traced function, which would make it again, with all that it keeps, "
                              "with every trace; make it outside and use it inside");
  }
  std::set<const Variable::State*> known;
  for (const Variable& variable : given) {
    if (!known.insert(variable.state().get()).second) {
      throw invalid_argument(name, ": variable \"", variable.name(), "\" is there twice");
    }
    if (!variable.trainable() || !at::isFloatingType(variable.dtype())) {
      throw invalid_argument(name, ": variable \"", variable.name(), "\" (", variable.state()->spec.to_string(),
                             ") is not trainable or not of a floating-point type");
    }
  }
  std::vector<std::optional<size_t>> groups(given.size());  // the first one that names it
  for (size_t g = 0; g < rule_.all.groups.size(); ++g) {
    const ParameterGroup& group = rule_.all.groups[g];
    const std::regex pattern(group.names);
    bool of_any = false;
    for (size_t i = 0; i < given.size(); ++i) {
      if (!std::regex_search(given[i].name(), pattern)) continue;
      of_any = true;
      if (!groups[i]) groups[i] = g;
    }
    if (of_any) continue;
    MUSTER_LOG(warning) << name << ": group \"" << group.names << "\" is of none of its variables, which are "
                        << absl::StrJoin(given, ", ",
                                         [](std::string* out, const Variable& each) { *out += each.name(); });
  }
  std::vector<Own> all;
  for (size_t i = 0; i < given.size(); ++i) all.push_back(own_of(given[i], groups[i]));
  auto beside_all = [&](const char* what, double initial, at::ScalarType dtype) {
    return make_beside_all(given, str_cat(given[0].name(), "/", name, "/", what),
                           InitialValue::constant({1}, initial, dtype));
  };
  rate_ = beside_all("learning_rate", rule_.learning_rate.initial(), at::kDouble);
  iterations_ = beside_all("iterations", 0, at::kLong);
  variables_ = std::move(given);
  own_ = std::move(all);
}

std::vector<Variable> Optimizer::slots() const {
  std::vector<Variable> all;
  for (const Own& own : own_) {
    all.insert(all.end(), own.slots.begin(), own.slots.end());
    if (own.lag) all.push_back(*own.lag);
  }
  if (rate_) all.insert(all.end(), {*rate_, *iterations_});
  return all;
}

Gradients Optimizer::gradients_of(const at::Tensor& loss, double share) const {
  if (!bound()) throw failed_precondition("minimize: ", rule_.name, " has no variables yet; bind() gives it some");
  // The mean over replicas is the sum of their shares: to weigh one loss costs nothing, to divide all gradients does.
  const ReplicaContext* replica = ReplicaContext::current();
  if (replica != nullptr) share /= replica->num_replicas();
  Gradients gradients = gradients_by_rows(loss, variables_, share);
  auto defined = [](const at::Tensor& gradient) { return gradient.defined(); };
  if (gradients.rows.empty() && std::none_of(gradients.dense.begin(), gradients.dense.end(), defined)) {
    throw invalid_argument("minimize: the loss depends on none of the ", variables_.size(),
                           " variables of this optimizer, the first of which is \"", variables_[0].name(), "\"");
  }
  return gradients;
}

void Optimizer::minimize(const at::Tensor& loss) const { apply(gradients_of(loss, 1), /*divisor=*/1); }

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

void Optimizer::minimize_mean(int64_t count, const std::function<at::Tensor(int64_t)>& loss) const {
  if (count < 1) throw invalid_argument("minimize_mean: of ", count, " losses, expected at least one");
  std::vector<ReplicaContext::Tensors> all;
  for (int64_t i = 0; i < count; ++i) {
    all.push_back(flat(variables_, gradients_of(loss(i), 1.0 / static_cast<double>(count))));
  }
  c10::AutoGradMode no_gradients(false);
  apply(sum_of(variables_, all, AcrossWorkers{}, /*divisor=*/1), /*divisor=*/1);
}

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
    for (const Variable& variable : variables_) replica->check_everywhere(*variable.state());
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
    if (!variable.state()->in_step()) continue;
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

namespace {

// What a variable that is beside all others has on that device, or the first of it.
Variable part_on(const Variable& variable, const std::string& device) {
  const std::vector<Variable>& parts = variable.copies().empty() ? variable.shards() : variable.copies();
  if (parts.empty()) return variable;
  const auto there = std::ranges::find(parts, device, [](const Variable& part) { return part.device(); });
  return there == parts.end() ? parts[0] : *there;
}

}  // namespace

class Optimizer::Rates {
 public:
  explicit Rates(const Optimizer& optimizer) : optimizer_(optimizer) {}

  at::Tensor at(const std::string& device, const Own& own) {
    at::Tensor& rate = rates_[{device, own.group}];
    if (rate.defined()) return rate;
    const ParameterGroup* group = optimizer_.group_of(own);
    const Schedule& of_all = optimizer_.rule_.learning_rate;
    const Schedule& schedule = group != nullptr && group->learning_rate ? *group->learning_rate : of_all;
    double factor = group != nullptr ? group->rate_factor : 1;
    if (&schedule != &of_all) factor *= schedule.initial() / of_all.initial();
    rate = part_on(*optimizer_.rate_, device).memory().reshape({});
    if (!schedule.is_constant()) rate = schedule.factor(steps_at(device).to(at::kDouble)).mul(rate);
    if (factor != 1) rate = rate.mul(factor);
    return rate;
  }
  // How much of its distance from a variable the mean keeps: nothing at the first step, whose value it is.
  at::Tensor share_of_lag(const std::string& device, double average) {
    at::Tensor& share = shares_[device];
    if (!share.defined()) share = steps_at(device).ne(0).to(at::kDouble).mul(average);
    return share;
  }

 private:
  at::Tensor steps_at(const std::string& device) const {
    return part_on(*optimizer_.iterations_, device).memory().reshape({});
  }

  const Optimizer& optimizer_;
  std::map<std::pair<std::string, std::optional<size_t>>, at::Tensor> rates_;
  std::map<std::string, at::Tensor> shares_;
};

namespace {

// By rows, those alone. `change`: what a step has taken off the value.
void add_to_lag(at::Tensor lag, const at::Tensor& change, const at::Tensor& share, const at::Tensor& ids) {
  const at::Tensor kept = share.to(lag.scalar_type());
  if (!ids.defined()) {
    lag.add_(change).mul_(kept);
    return;
  }
  rows::scatter_(lag, ids, rows::gather(lag, ids).add_(change).mul_(kept), "update");
}

}  // namespace

void Optimizer::apply_here(std::vector<Gradients> for_places) const {
  for (size_t p = 0; p < for_places.size(); ++p) {
    std::optional<DeviceScope> there;
    if (for_places.size() > 1) there.emplace(place_of(variables_[0], p).device());
    clip(rule_.all.clipping, for_places[p]);
  }
  Rates rates(*this);
  std::set<std::string> waiting;  // parameter servers whose rate and count wait for a gradient
  for (size_t i = 0; i < variables_.size(); ++i) {
    const Variable& variable = variables_[i];
    const Own& mine = own_[i];
    if (mine.group && group_of(mine)->rate_factor == 0) continue;
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
      // What does not depend on the gradient would be part of the request to a parameter server that reads. That could
      // be neither repeated nor shared then if it wrote, and what it had read others would have changed since.
      const bool elsewhere = own.state()->home != nullptr;
      if (elsewhere && waiting.insert(own.device()).second) {
        wait_for_({part_on(*rate_, own.device()).memory(), part_on(*iterations_, own.device()).memory()}, gradient);
      }
      Update step{.value = own.memory(),
                  .slots = {},
                  .gradient = gradient,
                  .rate = rates.at(own.device(), mine),
                  .weight_decay = mine.weight_decay};
      for (const Variable& slot : mine.slots) step.slots.push_back(place_of(slot, p).memory());
      if (elsewhere) {
        std::vector<at::Tensor> memory{step.value};
        memory.insert(memory.end(), step.slots.begin(), step.slots.end());
        if (mine.lag) memory.push_back(place_of(*mine.lag, p).memory());
        wait_for_(memory, gradient);
      }
      const at::Tensor ids = rows != nullptr ? rows->ids[part] : at::Tensor();
      at::Tensor before;
      if (mine.lag) before = ids.defined() ? rows::gather(step.value, ids) : step.value.clone();
      if (mine.lag && before.scalar_type() != mine.lag->dtype()) before = before.to(mine.lag->dtype());
      rows != nullptr ? update_rows(step, ids) : update(step);
      if (!mine.lag) continue;
      const at::Tensor change = before.sub_(ids.defined() ? rows::gather(step.value, ids) : step.value);
      add_to_lag(place_of(*mine.lag, p).memory(), change, rates.share_of_lag(own.device(), *rule_.all.average), ids);
    }
  }
  // The last: what depends on it is of the steps before.
  for (size_t p = 0; p < places_of(*iterations_); ++p) {
    const Variable steps = place_of(*iterations_, p);
    DeviceScope there(steps.device());
    steps.memory().add_(1);
  }
}

void Optimizer::update_rows(Update table, const at::Tensor& ids) const {
  Update some = table;
  some.value = rows::gather(table.value, ids);
  for (size_t i = 0; i < some.slots.size(); ++i) {
    if (!rule_.slots[i].scalar) some.slots[i] = rows::gather(table.slots[i], ids);
  }
  update(some);
  rows::scatter_(table.value, ids, some.value, "update");
  for (size_t i = 0; i < some.slots.size(); ++i) {
    if (!rule_.slots[i].scalar) rows::scatter_(table.slots[i], ids, some.slots[i], "update");
  }
}

at::Tensor Optimizer::Update::decayed_gradient() const {
  return weight_decay == 0 ? gradient : gradient.add(value, weight_decay);
}

void Optimizer::Update::decay_value() {
  if (weight_decay != 0) value.mul_(rate.mul(-weight_decay).add_(1));
}

namespace {

// What is the same in all places.
at::Tensor one_of(const Variable& variable) { return place_of(variable, 0).value().reshape({}); }

}  // namespace

double Optimizer::learning_rate() const {
  if (!bound()) return rule_.learning_rate.initial();
  c10::AutoGradMode no_gradients(false);
  const auto base = one_of(*rate_).item<double>();
  if (rule_.learning_rate.is_constant()) return base;
  return base * rule_.learning_rate.factor(one_of(*iterations_).to(at::kDouble)).item<double>();
}

void Optimizer::expect_settable(const char* call) const {
  if (!bound()) throw failed_precondition(call, ": ", rule_.name, " has no variables yet");
  if (Tracer::current() != nullptr) {
    throw failed_precondition(call,
                              " inside a traced function, which would do it once, while it is traced; expected "
                              "between steps");
  }
}

void Optimizer::set_learning_rate(double rate) const {
  expect_settable("set_learning_rate");
  if (!(rate >= 0) || !std::isfinite(rate)) {
    throw invalid_argument("set_learning_rate: ", rate, ", expected 0 or more");
  }
  Variable(*rate_).assign(at::full(rate_->sizes(), rate, at::kDouble));
}

int64_t Optimizer::iterations() const { return bound() ? one_of(*iterations_).item<int64_t>() : 0; }

void Optimizer::set_iterations(int64_t steps) const {
  expect_settable("set_iterations");
  if (steps < 0) throw invalid_argument("set_iterations: ", steps, ", expected 0 or more");
  Variable(*iterations_).assign(at::full(iterations_->sizes(), steps, at::kLong));
}

void Optimizer::set_clipping(const Clipping& clipping) {
  check(clipping);
  rule_.all.clipping = clipping;
}

void Optimizer::put_averages_in(const char* call, bool keep_values) const {
  expect_settable(call);
  if (!keeps_averages()) {
    throw failed_precondition(call, ": ", rule_.name, " keeps none; UpdateOptions::average makes it keep some");
  }
  c10::AutoGradMode no_gradients(false);
  for (size_t i = 0; i < variables_.size(); ++i) {
    // Part by part: a table need not fit into this process.
    for (size_t p = 0; p < parts_of(variables_[i]); ++p) {
      const bool in_parts = !variables_[i].shards().empty();
      Variable part = in_parts ? variables_[i].shards()[p] : variables_[i];
      Variable lag = in_parts ? own_[i].lag->shards()[p] : *own_[i].lag;
      // The mean as the variable can have it, so that what is kept of the value gives it back.
      const at::Tensor value = part.value(), before = lag.value();
      const at::Tensor mean = (value + before).to(value.scalar_type());
      const at::Tensor back = keep_values ? value.to(before.scalar_type()) - mean : at::zeros_like(before);
      part.assign(mean);
      lag.assign(back);
    }
  }
}

void Optimizer::swap_averages() const { put_averages_in("swap_averages", /*keep_values=*/true); }

std::vector<Variable> Optimizer::averages_less_values() const {
  std::vector<Variable> all;
  for (const Own& own : own_) {
    if (own.lag) all.push_back(*own.lag);
  }
  return all;
}

void Optimizer::take_averages() const { put_averages_in("take_averages", /*keep_values=*/false); }

}  // namespace muster
