#include "muster/fit/criteria/metric.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "muster/base/status.h"
#include "muster/fit/criteria/one_shape.h"
#include "muster/fit/criteria/weighted.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

double ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }

std::string metric_named(const std::string& name) { return str_cat("metric ", name); }

struct Both {
  at::Tensor output, target, weights;
};

// Of one shape, with a weight for each value. What is added up is float64, outputs are as they are.
Both weighed(const std::string& name, const at::Tensor& given, const at::Tensor& wanted, const at::Tensor& weights) {
  const auto [output, target] = in_one_shape(metric_named(name), given, wanted);
  return {output, target.to(at::kDouble), weights_for(metric_named(name), weights, output).to(at::kDouble)};
}

Both flat(const std::string& name, const at::Tensor& given, const at::Tensor& wanted, const at::Tensor& weights) {
  const auto [output, target, each] = weighed(name, given, wanted, weights);
  return {output.flatten(), target.flatten(), each.flatten()};
}

// In float32, as in Keras, whatever the scores are of: 0.3 of float32 is not above 0.3, though it is as float64.
at::Tensor above(const at::Tensor& scores, double threshold) { return scores.to(at::kFloat) > threshold; }

bool are_distributions(const at::Tensor& target, const at::Tensor& output) {
  return output.dim() > 0 && output.sizes() == target.sizes() && output.size(-1) > 1;
}

// The numbers of the classes that targets say: as they are, or of distributions over the last dimension of `output`.
at::Tensor classes_of(const std::string& name, const at::Tensor& output, const at::Tensor& target) {
  return are_distributions(target, output) ? target.argmax(-1) : class_of_each_row(metric_named(name), output, target);
}

bool has_scores(const at::Tensor& output, const at::Tensor& target) {
  if (output.dim() < 2 || output.size(-1) == 1) return false;
  return output.dim() == target.dim() + 1 || (output.sizes() == target.sizes()) ||
         (output.dim() == target.dim() && target.size(-1) == 1);
}

// What is known to be a constant costs no step anything.
at::Tensor count_of(int64_t count, const at::Tensor& like) {
  return at::full({1}, static_cast<double>(count), like.options().dtype(at::kDouble).requires_grad(false));
}

// The sum of all values, [1]. Right answers are of type bool.
at::Tensor sum_of(const at::Tensor& values) {
  return (values.dim() == 1 ? values : values.flatten()).sum({0}, /*keepdim=*/true, at::kDouble);
}

// Of right answers as numbers, too.
at::Tensor mean_of_positions(const at::Tensor& values, int64_t dims) {
  if (values.dim() <= dims) return values;
  return mean_beyond(values.scalar_type() == at::kBool ? values.to(at::kDouble) : values, dims);
}

// Of values for each example, for each position that has a weight, or one for the batch.
std::vector<at::Tensor> mean_sums(const std::string& name, const at::Tensor& values, const at::Tensor& target,
                                  const at::Tensor& weights) {
  if (!weights.defined()) {
    const int64_t examples = examples_of(target);
    const at::Tensor count = count_of(examples, values), own = mean_of_positions(values, 1);
    if (own.dim() == 0) return {count * own, count};
    if (own.size(0) != examples) {
      check_weights(str_cat(metric_named(name), ", its weights"), count.expand({examples}), own);
    }
    return {sum_of(own), count};
  }
  const at::Tensor own = mean_of_positions(values, weights.dim()).to(at::kDouble);
  const at::Tensor w = weights.to(at::kDouble);
  if (own.dim() == 0) return {at::stack({(own * w).sum(), w.sum()})};
  if (own.sizes() != w.sizes()) check_weights(str_cat(metric_named(name), ", its weights"), w, own);
  return {at::stack({own.dim() == 1 ? own.dot(w) : (own * w).sum(), w.sum()})};
}
double mean_result(const std::vector<double>& sums) { return ratio(sums[0], sums[1]); }

std::vector<at::Tensor> sums_of_loss(const std::string& name, const Loss& loss, const at::Tensor& output,
                                     const at::Tensor& target, const at::Tensor& weights) {
  if (!weights.defined() && examples_of(target) > 0) {
    const at::Tensor mean = loss.mean(output, target);
    if (mean.defined()) return mean_sums(name, mean, target, weights);
  }
  const at::Tensor each = loss.elements(output, target);
  const at::Tensor counted = loss.counted(each, target);
  if (!counted.defined()) return mean_sums(name, each, target, weights);
  const at::Tensor chosen = weights.defined() ? weights_for(metric_named(name), weights, each) * counted : counted;
  return mean_sums(name, each, target, chosen);
}

Metric mean_of_loss(const std::string& name, const Loss& loss) {
  const bool of_logits = loss.outputs() == Outputs::kLogits || loss.outputs() == Outputs::kClassLogits;
  return {name, 2,
          [name, loss, of_logits](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights,
                                  Outputs kind) {
            return sums_of_loss(name, loss, of_logits ? outputs_as(loss.outputs(), output, kind) : output, target,
                                weights);
          },
          mean_result, of_logits ? Metric::Reads::kAsGiven : Metric::Reads::kProbabilities};
}

// The mean of one loss where outputs are its logits, else of the other one, which takes probabilities.
Metric cross_entropy(const std::string& name, const Loss& of_logits, const Loss& of_probabilities) {
  return {name, 2,
          [=](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights, Outputs kind) {
            if (kind == of_logits.outputs()) return sums_of_loss(name, of_logits, output, target, weights);
            return sums_of_loss(name, of_probabilities, probabilities_of(output, kind), target, weights);
          },
          mean_result, Metric::Reads::kAsGiven};
}

// flat() for targets 0 and 1: of what counts, one beyond them becomes no number, which shows in the result.
Both flat_binary(const std::string& name, const at::Tensor& given, const at::Tensor& wanted,
                 const at::Tensor& weights) {
  auto [output, target, each] = flat(name, given, wanted, weights);
  const at::Tensor beyond = target.lt(0).logical_or(target.gt(1)).logical_and(each.ne(0));
  return {output, target.masked_fill(beyond, std::numeric_limits<double>::quiet_NaN()), each};
}

// True positives, false positives, false negatives.
Metric::Sums confusion(std::string name, double threshold) {
  return [name = std::move(name), threshold](const at::Tensor& output, const at::Tensor& target,
                                             const at::Tensor& weights) {
    const auto [p, y, w] = flat_binary(name, output, target, weights);
    const at::Tensor said = above(p, threshold).to(at::kDouble);
    return at::stack({(said * y * w).sum(), (said * (1 - y) * w).sum(), ((1 - said) * y * w).sum()});
  };
}

// The same for each class, [classes], after each other.
at::Tensor confusion_of_classes(const F1Options& options, const at::Tensor& output, const at::Tensor& target,
                                const at::Tensor& weights) {
  if (output.dim() < 2 || output.size(-1) != options.classes) {
    throw invalid_argument(metric_named(options.name), ": the output is ", spec_of(output).to_string(), ", expected ",
                           options.classes, " classes in its last dimension");
  }
  at::Tensor wanted = target;
  if (output.sizes() != target.sizes()) {
    const at::Tensor classes = class_of_each_row(metric_named(options.name), output, target);
    wanted = classes.unsqueeze(-1).eq(at::arange(options.classes, classes.options()));
  }
  const auto [given, y, w] = weighed(options.name, output, wanted, weights);
  const at::Tensor scores = given.to(at::kFloat);  // as above() has them
  // As in Keras: all that are highest, unless it is 0.
  const at::Tensor said =
      (options.threshold ? above(scores, *options.threshold)
                         : scores.eq(scores.amax({-1}, /*keepdim=*/true)).logical_and(scores.abs() > 1e-9))
          .to(at::kDouble);
  auto of_classes = [&](const at::Tensor& values) { return (values * w).flatten(0, -2).sum(0); };
  return at::cat({of_classes(said * y), of_classes(said * (1 - y)), of_classes((1 - said) * y)});
}

// The sum of the squares of what values differ from their mean, of their sum, that of their squares, and of their
// weights. A difference that is no more than the rounding of these sums, or of targets of float32, is none.
double spread_of(double sum, double squares, double weights) {
  const double spread = squares - ratio(sum * sum, weights);
  return spread <= 1e-12 * squares ? 0 : spread;
}

double f1_of(double right, double wrong, double missed) { return ratio(2 * right, 2 * right + wrong + missed); }

double average_f1(const F1Options& options, const std::vector<double>& sums) {
  const auto classes = static_cast<size_t>(options.classes);
  double total = 0, weight = 0, right = 0, wrong = 0, missed = 0;
  for (size_t i = 0; i < classes; ++i) {
    const double tp = sums[i], fp = sums[classes + i], fn = sums[2 * classes + i];
    const double own = options.average == F1Options::Average::kWeighted ? tp + fn : 1;
    total += own * f1_of(tp, fp, fn);
    weight += own;
    right += tp;
    wrong += fp;
    missed += fn;
  }
  return options.average == F1Options::Average::kMicro ? f1_of(right, wrong, missed) : ratio(total, weight);
}

// The area under the curve of points from the lowest threshold to the highest.
double roc_area(const std::vector<double>& above_true, const std::vector<double>& above_false) {
  double area = 0;
  for (size_t i = 0; i + 1 < above_true.size(); ++i) {
    const double high = ratio(above_true[i], above_true[0]), low = ratio(above_true[i + 1], above_true[0]);
    const double width = ratio(above_false[i], above_false[0]) - ratio(above_false[i + 1], above_false[0]);
    area += width * (high + low) / 2;
  }
  return area;
}

// As Keras does: true positives are interpolated between thresholds, not precision itself (Davis and Goadrich, 2006).
double precision_recall_area(const std::vector<double>& above_true, const std::vector<double>& above_false) {
  double area = 0;
  for (size_t i = 0; i + 1 < above_true.size(); ++i) {
    const double tp = above_true[i], next_tp = above_true[i + 1];
    const double p = tp + above_false[i], next_p = next_tp + above_false[i + 1];
    const double slope = ratio(tp - next_tp, std::max(p - next_p, 0.0));
    const double intercept = next_tp - slope * next_p;
    const double safe_ratio = p > 0 && next_p > 0 ? p / next_p : 1;
    area += ratio(slope * ((tp - next_tp) + intercept * std::log(safe_ratio)), above_true[0]);
  }
  return area;
}

}  // namespace

Metric::Parts Metric::parts_of(Sums sums) {
  return parts_of([sums = std::move(sums)](const at::Tensor& output, const at::Tensor& target,
                                           const at::Tensor& weights,
                                           Outputs) { return sums(output, target, weights); });
}

Metric::Parts Metric::parts_of(SumsAsGiven sums) {
  return [sums = std::move(sums)](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights,
                                  Outputs kind) {
    const auto ones = [&] { return at::ones({examples_of(target)}, output.options().requires_grad(false)); };
    return std::vector<at::Tensor>{sums(output, target, weights.defined() ? weights : ones(), kind)};
  };
}

at::Tensor Metric::sums(const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights,
                        Outputs kind) const {
  std::vector<at::Tensor> all;
  add_sums(output, target, weights, kind, all);
  return at::cat(all);
}

void Metric::add_sums(const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights, Outputs kind,
                      std::vector<at::Tensor>& all) const {
  const std::vector<at::Tensor> parts = parts_(output, target, weights, kind);
  int64_t count = 0;
  for (const at::Tensor& part : parts) {
    if (part.dim() != 1) {
      throw invalid_argument(metric_named(name_), ": its sums are ", spec_of(part).to_string(), ", expected [", length_,
                             "]");
    }
    count += part.size(0);
  }
  if (count != length_) {
    throw invalid_argument(metric_named(name_), " has given ", count, " sums of a batch, expected ", length_,
                           ", the length that it was made with");
  }
  all.insert(all.end(), parts.begin(), parts.end());
}

MeanOf::MeanOf(std::string name, PerExample value)
    : Metric(
          name, 2,
          [name, value = std::move(value)](const at::Tensor& output, const at::Tensor& target,
                                           const at::Tensor& weights,
                                           Outputs) { return mean_sums(name, value(output, target), target, weights); },
          mean_result) {}

Metric MeanOf::of_loss(std::string name, const Loss& loss) { return mean_of_loss(name, loss); }

Accuracy::Accuracy(std::string name, double threshold)
    : Metric(
          name, 2,
          [name, threshold](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights,
                            Outputs) -> std::vector<at::Tensor> {
            if (has_scores(output, target)) {
              return mean_sums(name, output.argmax(-1).eq(classes_of(name, output, target)), target, weights);
            }
            const auto [p, y] = in_one_shape(metric_named(name), output, target);
            const at::Tensor right = above(p, threshold).eq(above(y, threshold));
            if (!weights.defined()) return {sum_of(right), count_of(right.numel(), right)};
            const at::Tensor w = weights_for(metric_named(name), weights, right).to(at::kDouble);
            return {at::stack({(right.to(at::kDouble) * w).sum(), w.sum()})};
          },
          mean_result, Reads::kRanks) {}

BinaryAccuracy::BinaryAccuracy(double threshold, std::string name)
    : Metric(
          name, 2,
          [name, threshold](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights, Outputs) {
            const auto [said, wanted] = in_one_shape(metric_named(name), output, target);
            return mean_sums(name, above(said, threshold).to(at::kDouble).eq(wanted), target, weights);
          },
          mean_result) {}

CategoricalAccuracy::CategoricalAccuracy(std::string name)
    : Metric(
          name, 2,
          [name](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights, Outputs) {
            if (!are_distributions(target, output)) {
              throw invalid_argument(metric_named(name), ": the output is ", spec_of(output).to_string(),
                                     " and the target ", spec_of(target).to_string(),
                                     ", expected a score and a share for each class");
            }
            return mean_sums(name, output.argmax(-1).eq(target.argmax(-1)), target, weights);
          },
          mean_result, Reads::kRanks) {}

SparseCategoricalAccuracy::SparseCategoricalAccuracy(std::optional<int64_t> ignore_class, std::string name)
    : Metric(
          name, 2,
          [name, ignore_class](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights, Outputs) {
            const at::Tensor classes = class_of_each_row(metric_named(name), output, target);
            const at::Tensor right = output.argmax(-1).eq(classes);
            if (!ignore_class) return mean_sums(name, right, target, weights);
            const at::Tensor counted = classes.ne(*ignore_class);
            return mean_sums(name, right, target,
                             weights.defined() ? weights_for(metric_named(name), weights, right) * counted : counted);
          },
          mean_result, Reads::kRanks) {}

TopKAccuracy::TopKAccuracy(int64_t k, std::string name)
    : Metric(
          name, 2,
          [name, k](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights, Outputs) {
            // Fewer than k classes are above it, so that classes of equal scores are all in or all out, as in Keras; a
            // score that is no number is above all others. What is no class is never right.
            const at::Tensor classes = classes_of(name, output, target).unsqueeze(-1);
            const at::Tensor is_class = classes.ge(0).logical_and(classes.lt(output.size(-1)));
            const at::Tensor score = output.gather(-1, classes.clamp(0, output.size(-1) - 1));
            const at::Tensor above = output.le(score).logical_not().sum(-1, /*keepdim=*/true);
            return mean_sums(name, above.lt(k).logical_and(is_class).squeeze(-1), target, weights);
          },
          mean_result, Reads::kRanks) {
  if (k < 1) throw invalid_argument("TopKAccuracy: k is ", k, ", expected at least 1");
}

BinaryCrossEntropy::BinaryCrossEntropy(std::string name, double label_smoothing)
    : Metric(cross_entropy(name, make_binary_cross_entropy({.label_smoothing = label_smoothing}),
                           make_binary_cross_entropy({.from_logits = false, .label_smoothing = label_smoothing}))) {}

CategoricalCrossEntropy::CategoricalCrossEntropy(std::string name, double label_smoothing)
    : Metric(
          cross_entropy(name, make_categorical_cross_entropy({.label_smoothing = label_smoothing}),
                        make_categorical_cross_entropy({.from_logits = false, .label_smoothing = label_smoothing}))) {}

SparseCategoricalCrossEntropy::SparseCategoricalCrossEntropy(std::optional<int64_t> ignore_class, std::string name)
    : Metric(
          cross_entropy(name, make_sparse_categorical_cross_entropy({.ignore_class = ignore_class}),
                        make_sparse_categorical_cross_entropy({.from_logits = false, .ignore_class = ignore_class}))) {}

Precision::Precision(double threshold, std::string name)
    : Metric(name, 3, confusion(name, threshold),
             [](const std::vector<double>& sums) { return ratio(sums[0], sums[0] + sums[1]); }) {}

Recall::Recall(double threshold, std::string name)
    : Metric(name, 3, confusion(name, threshold),
             [](const std::vector<double>& sums) { return ratio(sums[0], sums[0] + sums[2]); }) {}

F1::F1(double threshold, std::string name)
    : Metric(name, 3, confusion(name, threshold),
             [](const std::vector<double>& sums) { return f1_of(sums[0], sums[1], sums[2]); }) {}

F1::F1(const F1Options& options)
    : Metric(
          options.name, 3 * options.classes,
          [options](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights) {
            return confusion_of_classes(options, output, target, weights);
          },
          [options](const std::vector<double>& sums) { return average_f1(options, sums); }) {
  if (options.classes < 2 && (options.classes < 1 || !options.threshold)) {
    throw invalid_argument("F1: ", options.classes,
                           " classes, of which the highest counts; expected at least 2, or one with a threshold");
  }
}

Auc::Auc(const AucOptions& options)
    : Metric(
          options.name, 2 * options.thresholds,
          [options](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights) {
            const auto [p, y, w] = flat_binary(options.name, output, target, weights);
            // Between 0 and 1 in equal steps; the lowest is below all, the highest above. An example counts for all
            // thresholds below it, which are added up in the end. What is no number is above none of the others. As
            // above(): in float64 a score of 0.3 would be beyond 3 steps of a tenth, and one of 0.7 not beyond 7.
            const auto last = static_cast<double>(options.thresholds - 1);
            const at::Tensor score = p.masked_fill(p.ne(p), 0).to(at::kFloat);
            const at::Tensor bucket = (score * last).ceil().clamp(1, last).to(at::kLong) - 1;
            const at::Tensor none = at::zeros({options.thresholds}, w.options());
            return at::cat({none.index_add(0, bucket, w * y), none.index_add(0, bucket, w * (1 - y))});
          },
          [options](const std::vector<double>& sums) {
            const auto half = static_cast<ptrdiff_t>(options.thresholds);
            std::vector<double> yes(sums.begin(), sums.begin() + half), no(sums.begin() + half, sums.end());
            for (size_t i = yes.size() - 1; i-- > 0;) {
              yes[i] += yes[i + 1];
              no[i] += no[i + 1];
            }
            return options.precision_recall ? precision_recall_area(yes, no) : roc_area(yes, no);
          }) {
  if (options.thresholds < 2) throw invalid_argument("Auc: ", options.thresholds, " thresholds, expected at least 2");
}

MeanSquaredError::MeanSquaredError(std::string name) : MeanOf(std::move(name), mean_squared_error) {}
MeanAbsoluteError::MeanAbsoluteError(std::string name) : MeanOf(std::move(name), mean_absolute_error) {}

RootMeanSquaredError::RootMeanSquaredError(std::string name)
    : Metric(
          name, 2,
          [name](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights, Outputs) {
            return sums_of_loss(name, mean_squared_error, output, target, weights);
          },
          [](const std::vector<double>& sums) { return std::sqrt(mean_result(sums)); }) {}

R2Score::R2Score(std::string name) : R2Score(R2Options{.name = std::move(name)}) {}

R2Score::R2Score(const R2Options& options)
    : Metric(
          options.name, 4 * options.outputs,
          [options](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights) {
            const auto [given, y, w] = weighed(options.name, output, target, weights);
            const at::Tensor said = given.to(at::kDouble);
            const int64_t values = y.dim() > 1 ? y.size(-1) : 1;
            if (values != options.outputs) {
              throw invalid_argument(metric_named(options.name), ": the output is ", spec_of(output).to_string(),
                                     ", expected ", options.outputs, " values in its last dimension; ",
                                     "R2Score({.outputs = ", values, "}) is the mean of those of each");
            }
            auto of_each = [&](const at::Tensor& x) { return x.reshape({-1, options.outputs}).sum(0); };
            return at::cat({of_each(w * (said - y).square()), of_each(w * y), of_each(w * y.square()), of_each(w)});
          },
          [options](const std::vector<double>& sums) {
            const auto outputs = static_cast<size_t>(options.outputs);
            double scores = 0, all_errors = 0, all_spread = 0;
            auto score = [](double errors, double spread) {
              return spread == 0 ? (errors == 0 ? 1.0 : 0.0) : 1 - errors / spread;
            };
            for (size_t i = 0; i < outputs; ++i) {
              const double errors = sums[i];
              const double spread = spread_of(sums[outputs + i], sums[2 * outputs + i], sums[3 * outputs + i]);
              scores += score(errors, spread);
              all_errors += errors;
              all_spread += spread;
            }
            return options.average == R2Options::Average::kUniform ? scores / static_cast<double>(outputs)
                                                                   : score(all_errors, all_spread);
          }) {
  if (options.outputs < 1) throw invalid_argument("R2Score: ", options.outputs, " outputs, expected at least 1");
}

MeanIoU::MeanIoU(int64_t classes, std::string name)
    : MeanIoU(MeanIoUOptions{.classes = classes, .name = std::move(name)}) {}

MeanIoU::MeanIoU(const MeanIoUOptions& options)
    : Metric(
          options.name, options.classes * options.classes,
          [options](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights) {
            const int64_t classes = options.classes;
            // Numbers of classes may have the shape of scores, which are of as many.
            const bool scores =
                has_scores(output, target) && (output.sizes() != target.sizes() || output.size(-1) == classes);
            if (scores && output.size(-1) != classes) {
              throw invalid_argument(metric_named(options.name), ": the output is ", spec_of(output).to_string(),
                                     ", expected scores of ", classes, " classes");
            }
            auto numbers = [&] { return in_one_shape(metric_named(options.name), output, target); };
            const auto [said, wanted] =
                scores ? OutputAndTarget{output.argmax(-1), classes_of(options.name, output, target)} : numbers();
            const at::Tensor column = said.to(at::kLong), row = wanted.to(at::kLong);
            at::Tensor counts = column.ge(0).logical_and(column.lt(classes));
            counts = counts.logical_and(row.ge(0)).logical_and(row.lt(classes));
            if (options.ignore_class) counts = counts.logical_and(row.ne(*options.ignore_class));
            const at::Tensor cell = (row * classes + column).masked_fill(counts.logical_not(), 0).flatten();
            const at::Tensor each = weights_for(metric_named(options.name), weights, column).to(at::kDouble) * counts;
            return at::zeros({classes * classes}, each.options()).index_add(0, cell, each.flatten());
          },
          [classes = options.classes](const std::vector<double>& sums) {
            const auto count = static_cast<size_t>(classes);
            double total = 0, occur = 0;
            for (size_t i = 0; i < count; ++i) {
              double row = 0, column = 0;
              for (size_t j = 0; j < count; ++j) {
                row += sums[i * count + j];
                column += sums[j * count + i];
              }
              const double either = row + column - sums[i * count + i];
              if (either == 0) continue;
              total += sums[i * count + i] / either;
              ++occur;
            }
            return ratio(total, occur);
          }) {
  if (options.classes < 1) throw invalid_argument("MeanIoU: ", options.classes, " classes, expected at least 1");
}

}  // namespace muster
