#include "muster/fit/criteria/criteria.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <absl/strings/str_join.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "muster/base/status.h"
#include "muster/distribute/replica_ops.h"
#include "muster/fit/criteria/weighted.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/failed_op.h"

namespace muster {
namespace {

std::string in_words(const std::vector<std::string>& outputs) {
  return str_cat("the model has ", outputs.size(), outputs.size() == 1 ? " output, " : " outputs, ",
                 absl::StrJoin(outputs, ", "));
}

// What is given for each output; null for none.
template <class T>
std::vector<const T*> given_for(const std::vector<std::string>& outputs, const char* option,
                                const PerOutput<T>& given) {
  std::vector<const T*> found(outputs.size(), nullptr);
  const auto& entries = given.entries();
  if (entries.empty()) return found;
  if (given.for_all()) return std::vector<const T*>(outputs.size(), &entries[0].what());
  const auto named = static_cast<size_t>(
      std::count_if(entries.begin(), entries.end(), [](const auto& entry) { return !entry.output().empty(); }));
  if (named == 0 && entries.size() != outputs.size()) {
    throw invalid_argument("compile: ", option, " is a list of ", entries.size(), ", but ", in_words(outputs),
                           "; expected one for each, or names of outputs");
  }
  if (named != 0 && named != entries.size()) {
    throw invalid_argument("compile: ", option, " has names of outputs for ", named, " of its ", entries.size(),
                           " entries, expected for all or none");
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    size_t place = i;
    if (named != 0) {
      const std::string& name = entries[i].output();
      place = static_cast<size_t>(std::find(outputs.begin(), outputs.end(), name) - outputs.begin());
      if (place == outputs.size()) {
        throw invalid_argument("compile: ", option, " is given for an output \"", name, "\", but ", in_words(outputs));
      }
      if (found[place] != nullptr) {
        throw invalid_argument("compile: ", option, " is given twice for output \"", name, "\"");
      }
    }
    found[place] = &entries[i].what();
  }
  return found;
}

// How much each example counts, or each of its positions; undefined: all alike.
struct Counted {
  at::Tensor weights{}, mask{};

  bool all_alike() const { return !weights.defined() && !mask.defined(); }
  int64_t dims() const {
    return std::max<int64_t>({1, weights.defined() ? weights.dim() : 0, mask.defined() ? mask.dim() : 0});
  }
};

// [N] or [N, T], as it is meant: [N, 1] is of examples, too.
at::Tensor of_examples_or_positions(at::Tensor weights, int64_t examples) {
  if (weights.numel() == examples) return weights.reshape({examples});
  while (weights.dim() > 1 && weights.size(-1) == 1) weights = weights.squeeze(-1);
  return weights;
}

void add_mask(at::Tensor& mask, const at::Tensor& other) {
  if (!mask.defined()) {
    mask = other;
    return;
  }
  const int64_t dims = std::max(mask.dim(), other.dim());
  mask = with_dims(mask, dims).logical_and(with_dims(other, dims));
}

// By the numbers of the classes or, as Keras does it, by the highest of several values; 1 for those without a weight.
at::Tensor class_weights(const at::Tensor& by_class, const at::Tensor& target, const at::Tensor& output,
                         int64_t examples) {
  at::Tensor classes = target;
  if (target.dim() == 2 && target.size(1) > 1 && target.sizes() == output.sizes()) classes = target.argmax(1);
  if (classes.numel() != examples) {
    throw invalid_argument("class_weight: the target is ", spec_of(target).to_string(),
                           ", expected the number of a class for each example");
  }
  classes = classes.reshape({examples});
  if (classes.is_floating_point()) classes = classes.round();
  const int64_t last = by_class.size(0) - 1;  // is 1
  classes = classes.to(at::kLong);
  classes = classes.masked_fill(classes.lt(0), last).clamp_max(last);
  return by_class.to(output.options().requires_grad(false)).index_select(0, classes);
}

Counted counted(const Expected& expected, const at::Tensor& by_class, const at::Tensor& output) {
  const int64_t examples = examples_of(expected.target);
  Counted found;
  if (expected.weights.defined()) {
    if (expected.weights.is_complex()) {
      throw invalid_argument("sample_weight: it is ", spec_of(expected.weights).to_string(), ", expected real numbers");
    }
    const at::Tensor given = of_examples_or_positions(expected.weights, examples);
    (given.scalar_type() == at::kBool ? found.mask : found.weights) = given;
  }
  if (expected.mask.defined()) {
    const at::Tensor mask = of_examples_or_positions(expected.mask, examples);
    add_mask(found.mask, mask.scalar_type() == at::kBool ? mask : mask.ne(0));
  }
  if (found.weights.defined()) found.weights = found.weights.to(output.scalar_type());
  if (by_class.defined()) {
    const at::Tensor of_classes = class_weights(by_class, expected.target, output, examples);
    found.weights = found.weights.defined() ? found.weights * with_dims(of_classes, found.weights.dim()) : of_classes;
  }
  return found;
}

// For the values that the mask lets count; undefined if it is not of the first dimensions of these, which somebody else
// says then.
at::Tensor mask_for(const at::Tensor& mask, const at::Tensor& values) {
  if (!mask.defined() || mask.dim() > values.dim()) return {};
  if (mask.sizes() != values.sizes().slice(0, static_cast<size_t>(mask.dim()))) return {};
  return with_dims(mask, values.dim());
}

// What does not count may be no number at all: 0 times that is none either, and neither is what is added to it.
at::Tensor filled_where_masked(const at::Tensor& mask, const at::Tensor& values, double with) {
  const at::Tensor own = mask_for(mask, values);
  return own.defined() ? values.masked_fill(own.logical_not(), with) : values;
}

// Padding is often a label that is no class, such as -100, where there have to be scores for it. A loss that has not
// said that its outputs are scores may compare labels with those of other examples: one that is filled would be alike.
at::Tensor filled_target(const Criterion& criterion, const at::Tensor& mask, const at::Tensor& target) {
  const bool of_scores = !criterion.loss || criterion.loss.outputs() != Outputs::kValues;
  return of_scores || target.is_floating_point() ? filled_where_masked(mask, target, 0) : target;
}

// The same values, whose gradient is 0 where they do not count, even if that of the loss is no number there.
at::Tensor trained_where_counted(const at::Tensor& mask, const at::Tensor& output) {
  if (!c10::GradMode::is_enabled() || !output.requires_grad()) return output;
  const at::Tensor own = mask_for(mask, output);
  return own.defined() ? at::where(own, output, output.detach()) : output;
}

// Half of the digits end at 65504, or count no further than 256.
at::Tensor sum_of_all(const at::Tensor& values) {
  return c10::isReducedFloatingType(values.scalar_type()) ? values.sum(at::kFloat) : values.sum();
}

// For metrics: one tensor, which has a weight for each example or position; undefined: all alike.
at::Tensor in_one(const Counted& counted, const at::Tensor& output) {
  if (counted.all_alike()) return {};
  const int64_t dims = counted.dims();
  if (!counted.mask.defined()) return with_dims(counted.weights, dims);
  const at::Tensor mask = with_dims(counted.mask, dims).to(output.scalar_type());
  return counted.weights.defined() ? with_dims(counted.weights, dims) * mask : mask;
}

// A loss of a batch.
struct LossOfBatch {
  at::Tensor each{};     // which it adds up; no dimension: it is the mean of the examples
  at::Tensor divisor{};  // by which the sum is divided; undefined: by what follows
  double known_divisor = 1;
};

int replicas() {
  const ReplicaContext* const replica = ReplicaContext::current();
  return replica == nullptr ? 1 : replica->num_replicas();
}

LossOfBatch weigh(const Loss& loss, at::Tensor each, const Expected& expected, Counted counted, int64_t examples,
                  int64_t batches) {
  const LossReduction reduction = loss.options().reduction;
  if (counted.weights.defined()) check_weights("sample_weight", counted.weights, each);
  if (counted.mask.defined()) check_weights("mask", counted.mask, each);
  if (const at::Tensor own = loss.counted(each, expected.target); own.defined()) add_mask(counted.mask, own);
  if (reduction != LossReduction::kSum) {
    each = mean_beyond(each, counted.dims());
  } else if (loss.options().means_last && each.dim() > counted.dims()) {
    each = each.mean(-1);
  }
  at::Tensor mask, weights;
  if (counted.mask.defined()) {
    mask = with_dims(counted.mask, each.dim()).expand(each.sizes());
    each = each.masked_fill(mask.logical_not(), 0);
  }
  if (counted.weights.defined()) {
    weights = with_dims(counted.weights, each.dim()).expand(each.sizes());
    each = each * weights;
  }
  if (reduction == LossReduction::kSum) {
    return {.each = each, .known_divisor = 1.0 / static_cast<double>(replicas() * batches)};
  }
  if (reduction == LossReduction::kMeanWithSampleWeight && weights.defined()) {
    if (mask.defined()) weights = weights.masked_fill(mask.logical_not(), 0);
    return {.each = each, .divisor = sum_of_all(weights)};
  }
  if (mask.defined()) {
    const bool half = c10::isReducedFloatingType(each.scalar_type());
    return {.each = each, .divisor = mask.sum().to(half ? at::kFloat : each.scalar_type())};
  }
  return {.each = mean_beyond(each, 1), .known_divisor = static_cast<double>(examples)};
}

LossOfBatch loss_of_batch(const Criterion& criterion, const at::Tensor& output, const Expected& expected,
                          const Counted& counted, int64_t examples, int64_t batches) {
  const Loss& loss = criterion.loss;
  const bool plain = loss.options().reduction != LossReduction::kSum && !loss.options().ignored_class;
  const bool is_mean = plain && counted.all_alike();
  if (is_mean && examples > 0) {
    const at::Tensor mean = loss.mean(output, expected.target);
    if (mean.defined()) return {.each = mean, .known_divisor = static_cast<double>(examples)};
  }
  const at::Tensor each = loss.elements(output, expected.target);
  if (each.dim() > 0 && each.size(0) != examples) {
    throw invalid_argument("loss ", loss.name(), ": it is ", spec_of(each).to_string(),
                           ", expected a number for each of ", examples, " examples, or one");
  }
  if (each.dim() == 0 && !counted.all_alike()) {
    throw invalid_argument("loss ", loss.name(), ": it is one number for the batch, so that weights of ",
                           "examples would be lost; expected a number for each example");
  }
  if (each.dim() == 0 || is_mean) {
    return {.each = mean_beyond(each, 1), .known_divisor = static_cast<double>(examples)};
  }
  return weigh(loss, each, expected, counted, examples, batches);
}

// To go down: what replicas have of it adds up to the loss of the whole batch, so that they divide by what all have.
at::Tensor reduced(const LossOfBatch& loss) {
  if (loss.each.dim() == 0) return loss.each;
  const at::Tensor sum = sum_of_all(loss.each);
  if (!loss.divisor.defined()) return sum / (loss.known_divisor == 0 ? 1 : loss.known_divisor);
  if (!c10::GradMode::is_enabled()) return sum;  // nobody goes down
  const at::Tensor divisor = replicas() == 1 ? loss.divisor : all_reduce(ReduceOp::kMean, loss.divisor);
  return sum / divisor.masked_fill(divisor.eq(0), 1);
}

// Each number of an epoch has a name of its own, beside those of validation data, which begin with "val_".
void refuse_double_names(const std::vector<Criterion>& all) {
  std::map<std::string, std::string> outputs{{"loss", ""}};  // by the names of their numbers
  auto add = [&](const Criterion& criterion, const std::string& number) {
    const std::string name = criterion.prefix + number;
    if (outputs.try_emplace(name, criterion.output).second) return;
    throw invalid_argument("compile: there would be two numbers \"", name,
                           "\"; expected metrics with a name of its own ", "each, such as Accuracy(\"top_1\")");
  };
  for (const Criterion& criterion : all) {
    if (criterion.loss && !criterion.prefix.empty()) add(criterion, "loss");
    for (const Metric& metric : criterion.metrics) add(criterion, metric.name());
  }
  for (const auto& [name, output] : outputs) {
    if (const auto found = outputs.find("val_" + name); found != outputs.end()) {
      throw invalid_argument("compile: \"", found->first, "\" is of output \"", found->second,
                             "\", and of validation data it is the \"", name, "\"; expected another name");
    }
  }
}

// The number of examples and the divisors. One op, if no data decides on a divisor.
std::vector<at::Tensor> counts(int64_t examples, const std::vector<LossOfBatch>& losses,
                               const at::TensorOptions& options) {
  const auto number = static_cast<double>(examples);
  const bool all_of_examples = std::all_of(losses.begin(), losses.end(), [&](const LossOfBatch& loss) {
    return !loss.divisor.defined() && loss.known_divisor == number;
  });
  if (all_of_examples) return {at::full({1 + static_cast<int64_t>(losses.size())}, number, options)};
  std::vector<at::Tensor> all{at::full({1}, number, options)};
  for (const LossOfBatch& loss : losses) {
    all.push_back(loss.divisor.defined() ? loss.divisor.to(at::kDouble).reshape({1})
                                         : at::full({1}, loss.known_divisor, options));
  }
  return all;
}

// One number may be that of an example, or stand for a whole batch: a loss of the user's own knows which.
void check_batched(const Loss& loss, const at::Tensor& target) {
  if (target.dim() > 0 || !loss.options().of_examples) return;
  throw invalid_argument("loss ", loss.name(), ": the target is ", spec_of(target).to_string(),
                         ", which is of one example: batch() the dataset, or unsqueeze(0) the tensors of an example");
}

// `by_class` has one more than there are classes with a weight. Of two classes there may be one probability.
void check_classes(const at::Tensor& by_class, const Criterion& criterion, const at::Tensor& output) {
  if (output.dim() < 2) return;
  const LossOptions& of_loss = criterion.loss.options();
  const int64_t last = by_class.size(0) - 2, classes = output.size(-1);
  const bool of_classes = of_loss.outputs == Outputs::kClassLogits ||
                          (of_loss.outputs == Outputs::kProbabilities && of_loss.of_examples && classes > 1);
  if (!of_classes || last < classes || last == of_loss.ignored_class) return;
  throw invalid_argument("class_weight: of class ", last, ", but the model gives scores of ", classes,
                         " classes, from 0 on");
}

// Says which output it was, if there are others.
template <class Compute>
auto about(const Criterion& criterion, const Compute& compute) {
  if (criterion.prefix.empty()) return compute();
  try {
    return compute();
  } catch (const Error& error) {
    throw Error(Status(error.code(), str_cat("output \"", criterion.output, "\": ", error.status().message())));
  }
}

}  // namespace

Criteria::Criteria(std::vector<std::string> outputs, const PerOutput<Loss>& losses, const PerOutput<double>& weights,
                   const OutputMetrics& metrics)
    : outputs_(std::move(outputs)) {
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (std::find(outputs_.begin(), outputs_.begin() + static_cast<ptrdiff_t>(i), outputs_[i]) !=
        outputs_.begin() + static_cast<ptrdiff_t>(i)) {
      throw invalid_argument("forward() of the model gives two outputs \"", outputs_[i], "\"");
    }
  }
  const std::vector<const Loss*> loss_of = given_for(outputs_, "loss", losses);
  const std::vector<const double*> weight_of = given_for(outputs_, "loss_weights", weights);
  const std::vector<const MetricList*> metrics_of = given_for<MetricList>(outputs_, "metrics", metrics);
  bool any_loss = false;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const bool has_loss = loss_of[i] != nullptr && *loss_of[i];
    const bool has_metrics = metrics_of[i] != nullptr && !metrics_of[i]->empty();
    const double weight = weight_of[i] != nullptr ? *weight_of[i] : 1;
    if (!std::isfinite(weight)) {  // one below 0 is for a loss that the others work against
      throw invalid_argument("compile: loss_weights of output \"", outputs_[i], "\" is ", weight,
                             ", expected a number");
    }
    if (!has_loss && !has_metrics) continue;
    any_loss = any_loss || has_loss;
    all_.push_back({.output = outputs_[i],
                    .place = i,
                    .prefix = outputs_.size() > 1 ? outputs_[i] + "_" : "",
                    .loss = has_loss ? *loss_of[i] : Loss(),
                    .weight = weight,
                    .metrics = has_metrics ? *metrics_of[i] : MetricList()});
  }
  if (!any_loss) throw invalid_argument("compile: no loss; such as muster::mean_squared_error");
  refuse_double_names(all_);
}

std::string Criteria::names() const {
  return absl::StrJoin(all_, ", ", [](std::string* text, const Criterion& each) { *text += each.output; });
}

Criteria::Judged Criteria::judge(const Features& outputs, const std::vector<Expected>& expected,
                                 const at::Tensor& by_class, int64_t batches) const {
  if (by_class.defined() && all_.size() > 1) {
    throw invalid_argument("class_weight: the model has the outputs ", names(),
                           ", expected one; with several, examples have weights (sample_weight)");
  }
  std::vector<Counted> weighted;
  std::vector<at::Tensor> targets;
  std::vector<LossOfBatch> losses;
  at::Tensor loss;
  int64_t examples = 0;
  for (size_t i = 0; i < all_.size(); ++i) {
    const Criterion& criterion = all_[i];
    const at::Tensor& output = outputs.tensors()[criterion.place];
    about(criterion, [&] {
      check_batched(criterion.loss, expected[i].target);
      if (by_class.defined()) check_classes(by_class, criterion, output);
      weighted.push_back(counted(expected[i], by_class, output));
      const at::Tensor& mask = weighted[i].mask;
      targets.push_back(filled_target(criterion, mask, expected[i].target));
      const int64_t own = examples_of(expected[i].target);
      if (i > 0 && own != examples) {
        throw invalid_argument("its target is ", spec_of(expected[i].target).to_string(), ", that of \"",
                               all_[0].output, "\" is ", spec_of(expected[0].target).to_string(),
                               "; expected as many examples");
      }
      examples = own;
      if (!criterion.loss) return;
      LossOfBatch of_batch = loss_of_batch(criterion, trained_where_counted(mask, output), {.target = targets[i]},
                                           weighted[i], examples, batches);
      const at::Tensor mean = reduced(of_batch);
      const at::Tensor part = criterion.weight == 1 ? mean : mean * criterion.weight;
      of_batch.each = of_batch.each.detach();
      losses.push_back(std::move(of_batch));
      loss = loss.defined() ? loss + part : part;
    });
  }

  c10::AutoGradMode no_gradients(false);
  const at::TensorOptions as_sums = outputs.tensors()[all_[0].place].options().requires_grad(false).dtype(at::kDouble);
  std::vector<at::Tensor> sums = counts(examples, losses, as_sums);
  for (const LossOfBatch& of_batch : losses) {
    // One op: nobody needs the mean itself, whose gradient is known without it, or it is that of all.
    const at::Tensor& each = of_batch.each;
    sums.push_back(each.dim() == 0 ? at::full({1}, static_cast<double>(examples), as_sums) * each
                                   : (each.dim() == 1 ? each : each.flatten()).sum({0}, /*keepdim=*/true, at::kDouble));
  }
  for (size_t i = 0; i < all_.size(); ++i) {
    const Criterion& criterion = all_[i];
    if (criterion.metrics.empty()) continue;
    about(criterion, [&] {
      const at::Tensor output = filled_where_masked(weighted[i].mask, outputs.tensors()[criterion.place].detach(), 1);
      const at::Tensor weights = in_one(weighted[i], output);
      const at::Tensor probabilities = probabilities_of(output, criterion.loss.outputs());
      // Softmax, which takes longer than to look for the highest, leaves the order as it is.
      const bool in_order = criterion.loss.outputs() == Outputs::kClassLogits && output.dim() > 1;
      for (const Metric& metric : criterion.metrics) {
        const bool as_it_is =
            metric.reads() == Metric::Reads::kAsGiven || (in_order && metric.reads() == Metric::Reads::kRanks);
        metric.add_sums(as_it_is ? output : probabilities, targets[i], weights, criterion.loss.outputs(), sums);
      }
    });
  }
  return {at::cat(sums), loss};
}

size_t Criteria::losses() const {
  return static_cast<size_t>(
      std::count_if(all_.begin(), all_.end(), [](const Criterion& each) { return static_cast<bool>(each.loss); }));
}

size_t Criteria::length() const {
  size_t length = kDivisors + 2 * losses();
  for (const Criterion& criterion : all_) {
    for (const Metric& metric : criterion.metrics) length += static_cast<size_t>(metric.length());
  }
  return length;
}

Logs Criteria::logs(const std::vector<double>& sums) const {
  Logs logs{{"loss", 0}};
  auto divisor = sums.begin() + kDivisors, next = divisor + static_cast<ptrdiff_t>(losses());
  for (const Criterion& criterion : all_) {
    if (!criterion.loss) continue;
    const double own = *next++ / (*divisor == 0 ? 1 : *divisor);
    ++divisor;
    if (!criterion.prefix.empty()) logs.set(criterion.prefix + "loss", own);
    logs.set("loss", logs["loss"] + criterion.weight * own);
  }
  for (const Criterion& criterion : all_) {
    for (const Metric& metric : criterion.metrics) {
      logs.set(criterion.prefix + metric.name(), metric.result({next, next + metric.length()}));
      next += metric.length();
    }
  }
  return logs;
}

std::vector<std::string> Criteria::numbers() const {
  std::vector<std::string> names{"loss"};
  for (const Criterion& criterion : all_) {
    if (criterion.loss && !criterion.prefix.empty()) names.push_back(criterion.prefix + "loss");
    for (const Metric& metric : criterion.metrics) names.push_back(criterion.prefix + metric.name());
  }
  return names;
}

Status Criteria::explained(const Status& status) const {
  const std::optional<std::string> op = op_with_unfit_operand(status);
  if (!op || !(op->starts_with("aten::nll_loss") || *op == "aten::gather")) return status;
  std::vector<std::string> losses;
  for (const Criterion& criterion : all_) {
    if (criterion.loss.name() != sparse_categorical_cross_entropy.name()) continue;
    losses.push_back(str_cat(criterion.loss.name(),
                             criterion.prefix.empty() ? "" : str_cat(" of output \"", criterion.output, "\"")));
  }
  if (losses.empty()) return status;
  return Status(status.code(),
                str_cat(status.message(), "; a label of loss ", absl::StrJoin(losses, ", "),
                        " is the number of a class, a whole one from 0 on, of as many classes as the model gives "
                        "scores"),
                status.task(), status.detail());
}

std::string Criteria::to_string() const {
  if (outputs_.size() < 2) return "";
  std::string text;
  for (size_t i = 0; i < outputs_.size(); ++i) {
    const auto found = std::find_if(all_.begin(), all_.end(), [&](const Criterion& each) { return each.place == i; });
    str_append(text, "output ", outputs_[i], ": ");
    if (found == all_.end()) {
      str_append(text, "no loss\n");
      continue;
    }
    str_append(text, found->loss ? found->loss.name() : "no loss");
    if (found->loss && found->weight != 1) str_append(text, " times ", found->weight);
    for (const Metric& metric : found->metrics) str_append(text, ", ", metric.name());
    str_append(text, "\n");
  }
  return text;
}

}  // namespace muster
