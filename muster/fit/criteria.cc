#include "muster/fit/criteria.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <absl/strings/str_join.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>
#include <optional>

#include "muster/base/status.h"
#include "muster/runtime/failed_op.h"
#include "muster/runtime/tensors.h"

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

at::Tensor weights_of(const Expected& expected, const at::Tensor& by_class, const at::Tensor& output) {
  const at::Tensor& target = expected.target;
  const int64_t examples = target.dim() == 0 ? 1 : target.size(0);
  if (expected.weights.defined() && expected.weights.numel() != examples) {
    throw invalid_argument("sample_weight: it is ", spec_of(expected.weights).to_string(),
                           ", expected one for each of ", examples, " examples");
  }
  at::Tensor weights = expected.weights.defined() ? expected.weights.reshape({examples}).to(output.scalar_type())
                                                  : at::ones({examples}, output.options().requires_grad(false));
  if (!by_class.defined()) return weights;
  at::Tensor classes = target.flatten();
  if (classes.numel() != examples) {
    throw invalid_argument("class_weight: the target is ", spec_of(target).to_string(),
                           ", expected the number of a class for each example");
  }
  if (classes.is_floating_point()) classes = classes.round();
  classes = classes.to(at::kLong).clamp(0, by_class.size(0) - 1);
  return weights * by_class.to(output.options()).index_select(0, classes);
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
    if (!has_loss && !has_metrics) continue;
    any_loss = any_loss || has_loss;
    all_.push_back({.output = outputs_[i],
                    .place = i,
                    .prefix = outputs_.size() > 1 ? outputs_[i] + "_" : "",
                    .loss = has_loss ? *loss_of[i] : Loss(),
                    .weight = weight_of[i] != nullptr ? *weight_of[i] : 1,
                    .metrics = has_metrics ? *metrics_of[i] : MetricList()});
  }
  if (!any_loss) throw invalid_argument("compile: no loss; such as muster::mean_squared_error");
  refuse_double_names(all_);
}

std::string Criteria::names() const {
  return absl::StrJoin(all_, ", ", [](std::string* text, const Criterion& each) { *text += each.output; });
}

Criteria::Judged Criteria::judge(const Features& outputs, const std::vector<Expected>& expected,
                                 const at::Tensor& by_class) const {
  if (by_class.defined() && all_.size() > 1) {
    throw invalid_argument("class_weight: the model has the outputs ", names(),
                           ", expected one; with several, examples have weights (sample_weight)");
  }
  std::vector<at::Tensor> weights, losses;
  at::Tensor loss;
  double examples = 0;
  for (size_t i = 0; i < all_.size(); ++i) {
    const Criterion& criterion = all_[i];
    const at::Tensor& output = outputs.tensors()[criterion.place];
    about(criterion, [&] {
      weights.push_back(weights_of(expected[i], by_class, output));
      const auto own = static_cast<double>(weights[i].size(0));
      if (i > 0 && own != examples) {
        throw invalid_argument("its target is ", spec_of(expected[i].target).to_string(), ", that of \"",
                               all_[0].output, "\" is ", spec_of(expected[0].target).to_string(),
                               "; expected as many examples");
      }
      examples = own;
      if (!criterion.loss) return;
      at::Tensor each = criterion.loss(output, expected[i].target);
      if (each.dim() > 0 && each.size(0) != weights[i].size(0)) {
        throw invalid_argument("loss ", criterion.loss.name(), ": it is ", spec_of(each).to_string(),
                               ", expected a number for each of ", weights[i].size(0), " examples, or one");
      }
      const bool weighted = expected[i].weights.defined() || by_class.defined();
      if (weighted && each.dim() == 0) {
        throw invalid_argument("loss ", criterion.loss.name(), ": it is one number for the batch, so that weights of ",
                               "examples would be lost; expected a number for each example");
      }
      if (each.dim() > 1) each = each.flatten(1).mean(1);
      if (weighted) each = each * weights[i];
      const at::Tensor mean = each.dim() == 0 ? each : each.sum() / std::max(examples, 1.0);
      const at::Tensor part = criterion.weight == 1 ? mean : mean * criterion.weight;
      losses.push_back(each.detach());
      loss = loss.defined() ? loss + part : part;
    });
  }

  c10::AutoGradMode no_gradients(false);
  std::vector<at::Tensor> sums{at::full({1}, examples, weights[0].options().dtype(at::kDouble))};
  for (const at::Tensor& each : losses) {
    // One op: nobody needs the mean itself, whose gradient is known without it.
    sums.push_back(each.dim() == 0 ? (each.to(at::kDouble) * examples).reshape({1})
                                   : each.sum({0}, /*keepdim=*/true, at::kDouble));
  }
  for (size_t i = 0; i < all_.size(); ++i) {
    const Criterion& criterion = all_[i];
    if (criterion.metrics.empty()) continue;
    about(criterion, [&] {
      const at::Tensor output = outputs.tensors()[criterion.place].detach();
      const at::Tensor probabilities = probabilities_of(output, criterion.loss.outputs());
      // Softmax, which takes longer than to look for the highest, leaves the order as it is.
      const bool in_order = criterion.loss.outputs() == Outputs::kClassLogits && output.dim() > 1;
      for (const Metric& metric : criterion.metrics) {
        const bool as_it_is =
            metric.reads() == Metric::Reads::kAsGiven || (in_order && metric.reads() == Metric::Reads::kRanks);
        sums.push_back(metric.sums(as_it_is ? output : probabilities, expected[i].target, weights[i],
                                   criterion.loss.outputs()));
      }
    });
  }
  return {at::cat(sums), loss};
}

size_t Criteria::length() const {
  size_t length = kLosses;
  for (const Criterion& criterion : all_) {
    if (criterion.loss) ++length;
    for (const Metric& metric : criterion.metrics) length += static_cast<size_t>(metric.length());
  }
  return length;
}

Logs Criteria::logs(const std::vector<double>& sums) const {
  const double examples = std::max(sums[kExamples], 1.0);
  Logs logs{{"loss", 0}};
  auto next = sums.begin() + kLosses;
  for (const Criterion& criterion : all_) {
    if (!criterion.loss) continue;
    const double own = *next++ / examples;
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
                        " is the number of a class, from 0 on, of as many classes as the model gives scores"),
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
