#include "muster/fit/metric.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "muster/base/status.h"
#include "muster/fit/losses.h"
#include "muster/fit/one_shape.h"
#include "muster/runtime/tensors.h"

namespace muster {
namespace {

double ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }

// A weight for each value of the examples.
at::Tensor for_values(const at::Tensor& weights, const at::Tensor& values) {
  if (values.dim() <= 1) return weights;
  std::vector<int64_t> sizes(static_cast<size_t>(values.dim()), 1);
  sizes[0] = values.size(0);
  return weights.view(sizes).expand(values.sizes());
}

struct Both {
  at::Tensor output, target, weights;
};

// Of one shape, as float64, flat.
Both flat(const std::string& name, const at::Tensor& given, const at::Tensor& wanted, const at::Tensor& weights) {
  const auto [output, target] = in_one_shape(str_cat("metric ", name), given, wanted);
  return {output.to(at::kDouble).flatten(), target.to(at::kDouble).flatten(),
          for_values(weights, output).to(at::kDouble).flatten()};
}

// The numbers of the classes that targets say: as they are, or of distributions over the last dimension of `output`.
at::Tensor classes_of(const at::Tensor& target, const at::Tensor& output) {
  if (target.dim() == output.dim() && target.size(-1) == output.size(-1) && output.size(-1) > 1)
    return target.argmax(-1);
  if (target.dim() == output.dim() && target.size(-1) == 1) return target.squeeze(-1).to(at::kLong);
  return target.to(at::kLong);
}

bool has_scores(const at::Tensor& output, const at::Tensor& target) {
  if (output.dim() < 2 || output.size(-1) == 1) return false;
  return output.dim() == target.dim() + 1 || (output.sizes() == target.sizes()) ||
         (output.dim() == target.dim() && target.size(-1) == 1);
}

at::Tensor mean_sums(const at::Tensor& values, const at::Tensor& weights) {
  const at::Tensor own = (values.dim() <= 1 ? values : values.flatten(1).mean(1)).to(at::kDouble);
  const at::Tensor w = weights.to(at::kDouble);
  return at::stack({own.sizes() == w.sizes() ? own.dot(w) : (own * w).sum(), w.sum()});
}
double mean_result(const std::vector<double>& sums) { return ratio(sums[0], sums[1]); }

// True positives, false positives, false negatives.
Metric::Sums confusion(std::string name, double threshold) {
  return [name = std::move(name), threshold](const at::Tensor& output, const at::Tensor& target,
                                             const at::Tensor& weights) {
    const auto [p, y, w] = flat(name, output, target, weights);
    const at::Tensor said = (p > threshold).to(at::kDouble);
    return at::stack({(said * y * w).sum(), (said * (1 - y) * w).sum(), ((1 - said) * y * w).sum()});
  };
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

MeanOf::MeanOf(std::string name, PerExample value)
    : Metric(
          std::move(name), 2,
          [value = std::move(value)](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights) {
            return mean_sums(value(output, target), weights);
          },
          mean_result) {}

Accuracy::Accuracy(std::string name, double threshold)
    : Metric(
          name, 2,
          [name, threshold](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights) {
            if (has_scores(output, target)) {
              return mean_sums(output.argmax(-1).eq(classes_of(target, output)).to(at::kDouble), weights);
            }
            const auto [p, y, w] = flat(name, output, target, weights);
            return at::stack({((p > threshold).eq(y > threshold).to(at::kDouble) * w).sum(), w.sum()});
          },
          mean_result, Reads::kRanks) {}

TopKAccuracy::TopKAccuracy(int64_t k, std::string name)
    : Metric(
          std::move(name), 2,
          [k](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights) {
            // Fewer than k classes are above it, so that classes of equal scores are all in or all out, as in Keras; a
            // score that is no number is above all others. What is no class is never right.
            const at::Tensor classes = classes_of(target, output).unsqueeze(-1);
            const at::Tensor is_class = classes.ge(0).logical_and(classes.lt(output.size(-1)));
            const at::Tensor score = output.gather(-1, classes.clamp(0, output.size(-1) - 1));
            const at::Tensor above = output.le(score).logical_not().sum(-1, /*keepdim=*/true);
            return mean_sums(above.lt(k).logical_and(is_class).squeeze(-1).to(at::kDouble), weights);
          },
          mean_result, Reads::kRanks) {}

Precision::Precision(double threshold, std::string name)
    : Metric(name, 3, confusion(name, threshold),
             [](const std::vector<double>& sums) { return ratio(sums[0], sums[0] + sums[1]); }) {}

Recall::Recall(double threshold, std::string name)
    : Metric(name, 3, confusion(name, threshold),
             [](const std::vector<double>& sums) { return ratio(sums[0], sums[0] + sums[2]); }) {}

F1::F1(double threshold, std::string name)
    : Metric(name, 3, confusion(name, threshold),
             [](const std::vector<double>& sums) { return ratio(2 * sums[0], 2 * sums[0] + sums[1] + sums[2]); }) {}

Auc::Auc(const AucOptions& options)
    : Metric(
          options.name, 2 * options.thresholds,
          [options](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights) {
            const auto [p, y, w] = flat(options.name, output, target, weights);
            // Between 0 and 1 in equal steps; the lowest is below all, the highest above. An example counts for all
            // thresholds below it, which are added up in the end.
            const auto last = static_cast<double>(options.thresholds - 1);
            const at::Tensor bucket = (p * last).ceil().clamp(1, last).to(at::kLong) - 1;
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
          std::move(name), 2,
          [](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights) {
            return mean_sums(mean_squared_error(output, target), weights);
          },
          [](const std::vector<double>& sums) { return std::sqrt(mean_result(sums)); }) {}

R2Score::R2Score(std::string name)
    : Metric(
          name, 4,
          [name](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights) {
            const auto [said, y, w] = flat(name, output, target, weights);
            return at::stack({(w * (said - y).square()).sum(), (w * y).sum(), (w * y.square()).sum(), w.sum()});
          },
          [](const std::vector<double>& sums) {
            const double spread = sums[2] - ratio(sums[1] * sums[1], sums[3]);
            return spread == 0 ? (sums[0] == 0 ? 1.0 : 0.0) : 1 - sums[0] / spread;
          }) {}

MeanIoU::MeanIoU(int64_t classes, std::string name)
    : Metric(
          std::move(name), classes * classes,
          [classes](const at::Tensor& output, const at::Tensor& target, const at::Tensor& weights) {
            const at::Tensor said = has_scores(output, target) ? output.argmax(-1) : output.to(at::kLong);
            const at::Tensor wanted = has_scores(output, target) ? classes_of(target, output) : target.to(at::kLong);
            const at::Tensor cell = (wanted * classes + said).flatten();
            const at::Tensor each = for_values(weights, said).to(at::kDouble).flatten();
            return at::zeros({classes * classes}, each.options()).index_add(0, cell, each);
          },
          [classes](const std::vector<double>& sums) {
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
          }) {}

}  // namespace muster
