#include "muster/fit/criteria/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/logit.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "muster/base/status.h"
#include "muster/fit/criteria/one_shape.h"
#include "muster/fit/criteria/weighted.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

constexpr double kEpsilon = 1e-7;  // of Keras: no logarithm of 0

// Both of one shape, and the target of the output's type.
OutputAndTarget alike(const char* name, const at::Tensor& output, const at::Tensor& target) {
  OutputAndTarget both = in_one_shape(str_cat("loss ", name), output, target);
  both.target = both.target.to(both.output.scalar_type());
  return both;
}

using Elementwise = at::Tensor (*)(const at::Tensor& output, const at::Tensor& target);

Loss elementwise(const char* name, Elementwise function, Outputs outputs = Outputs::kValues) {
  return {name,
          [name, function](const at::Tensor& output, const at::Tensor& target) {
            const OutputAndTarget both = alike(name, output, target);
            return function(both.output, both.target);
          },
          {.outputs = outputs, .means_last = true, .of_examples = true}};
}

// Keras takes 0 and 1 as well as -1 and 1.
at::Tensor signs(const at::Tensor& target) {
  return at::where(target > 0, at::ones_like(target), -at::ones_like(target));
}

at::Tensor log_probabilities(const at::Tensor& output, bool from_logits) {
  if (from_logits) return at::log_softmax(output, -1);
  const at::Tensor scaled = output / output.sum(-1, /*keepdim=*/true);
  return scaled.clamp(kEpsilon, 1 - kEpsilon).log();
}

void check_smoothing(const char* name, double smoothing) {
  if (smoothing >= 0 && smoothing <= 1) return;
  throw invalid_argument("loss ", name, ": label_smoothing is ", smoothing, ", expected 0 to 1");
}

// Towards one of so many classes, each as likely.
at::Tensor smoothed(const at::Tensor& target, double smoothing, int64_t classes) {
  return smoothing > 0 ? target * (1 - smoothing) + smoothing / static_cast<double>(classes) : target;
}

// What is shorter than kEpsilon has no direction.
at::Tensor unit(const at::Tensor& x) {
  return x / x.square().sum(-1, /*keepdim=*/true).clamp_min(kEpsilon * kEpsilon).sqrt();
}

}  // namespace

Loss Loss::with(LossReduction reduction) const {
  Loss other = *this;
  other.options_.reduction = reduction;
  return other;
}

at::Tensor Loss::operator()(const at::Tensor& output, const at::Tensor& target) const {
  return mean_beyond(elements(output, target), 1);
}

at::Tensor Loss::elements(const at::Tensor& output, const at::Tensor& target) const {
  at::Tensor each = function_(output, target);
  const bool is_square = each.dim() == 2 && each.size(0) == each.size(1) && each.size(0) > 1;
  if (is_square && each.numel() > std::max(output.numel(), target.numel()) && output.dim() != target.dim() &&
      output.numel() == target.numel()) {
    throw invalid_argument("loss \"", name_, "\": the output is ", spec_of(output).to_string(), ", the target ",
                           spec_of(target).to_string(), " and the loss ", spec_of(each).to_string(),
                           ", as if each example were compared with every other one; expected output and target of one "
                           "shape: squeeze(-1) or unsqueeze(-1) one of them");
  }
  return each;
}

at::Tensor Loss::counted(const at::Tensor& elements, const at::Tensor& target) const {
  if (!options_.ignored_class) return {};
  return target.ne(*options_.ignored_class).reshape(elements.sizes());
}

const Loss mean_squared_error =
    elementwise("mean_squared_error", [](const at::Tensor& output, const at::Tensor& target) {
      return at::mse_loss(output, target, at::Reduction::None);
    });
const Loss mean_absolute_error = elementwise(
    "mean_absolute_error", [](const at::Tensor& output, const at::Tensor& target) { return (output - target).abs(); });
const Loss mean_squared_logarithmic_error =
    elementwise("mean_squared_logarithmic_error", [](const at::Tensor& output, const at::Tensor& target) {
      return (output.clamp_min(kEpsilon).log1p() - target.clamp_min(kEpsilon).log1p()).square();
    });
const Loss log_cosh = elementwise("log_cosh", [](const at::Tensor& output, const at::Tensor& target) {
  const at::Tensor x = output - target;
  return x + at::softplus(-2 * x) - std::log(2.0);
});
const Loss poisson = elementwise("poisson", [](const at::Tensor& output, const at::Tensor& target) {
  return output - target * (output + kEpsilon).log();
});
const Loss hinge = elementwise("hinge", [](const at::Tensor& output, const at::Tensor& target) {
  return (1 - signs(target) * output).clamp_min(0);
});
const Loss squared_hinge = elementwise("squared_hinge", [](const at::Tensor& output, const at::Tensor& target) {
  return (1 - signs(target) * output).clamp_min(0).square();
});
const Loss binary_cross_entropy = make_binary_cross_entropy({.from_logits = false});
const Loss binary_cross_entropy_with_logits = make_binary_cross_entropy({});

const Loss kl_divergence{"kl_divergence",
                         [](const at::Tensor& output, const at::Tensor& target) {
                           const OutputAndTarget both = alike("kl_divergence", output, target);
                           const at::Tensor wanted = both.target.clamp(kEpsilon, 1);
                           const at::Tensor logs = (wanted / both.output.clamp(kEpsilon, 1)).log();
                           return (wanted * logs).sum(-1);
                         },
                         {.outputs = Outputs::kProbabilities, .of_examples = true}};
const Loss cosine_similarity{"cosine_similarity",
                             [](const at::Tensor& output, const at::Tensor& target) {
                               const OutputAndTarget both = alike("cosine_similarity", output, target);
                               return -(unit(both.output) * unit(both.target)).sum(-1);
                             },
                             {.of_examples = true}};
const Loss categorical_cross_entropy = make_categorical_cross_entropy({});
const Loss sparse_categorical_cross_entropy = make_sparse_categorical_cross_entropy({});

Loss huber(double delta) {
  if (!(delta > 0)) throw invalid_argument("loss huber: delta is ", delta, ", expected a number above 0");
  return {"huber",
          [delta](const at::Tensor& output, const at::Tensor& target) {
            const OutputAndTarget both = alike("huber", output, target);
            return at::huber_loss(both.output, both.target, at::Reduction::None, delta);
          },
          {.means_last = true, .of_examples = true}};
}

Loss make_binary_cross_entropy(const BinaryLossOptions& options) {
  const char* const name = options.from_logits ? "binary_cross_entropy_with_logits" : "binary_cross_entropy";
  check_smoothing(name, options.label_smoothing);
  return {name,
          [name, options](const at::Tensor& output, const at::Tensor& target) {
            const OutputAndTarget both = alike(name, output, target);
            const at::Tensor wanted = smoothed(both.target, options.label_smoothing, 2);
            if (options.from_logits) {
              return at::binary_cross_entropy_with_logits(both.output, wanted, {}, {}, at::Reduction::None);
            }
            return at::binary_cross_entropy(both.output.clamp(kEpsilon, 1 - kEpsilon), wanted, {}, at::Reduction::None);
          },
          {.outputs = options.from_logits ? Outputs::kLogits : Outputs::kProbabilities,
           .means_last = true,
           .of_examples = true}};
}

Loss make_binary_focal_cross_entropy(const FocalOptions& options) {
  static constexpr const char* kName = "binary_focal_cross_entropy";
  check_smoothing(kName, options.label_smoothing);
  const Loss entropy = make_binary_cross_entropy({.from_logits = options.from_logits});
  return {kName,
          [options, entropy](const at::Tensor& output, const at::Tensor& target) {
            const OutputAndTarget both = alike(kName, output, target);
            const at::Tensor wanted = smoothed(both.target, options.label_smoothing, 2);
            const at::Tensor p = options.from_logits ? at::sigmoid(both.output) : both.output;
            const at::Tensor missed = wanted * (1 - p) + (1 - wanted) * p;
            const at::Tensor focal = missed.pow(options.gamma) * entropy.elements(both.output, wanted);
            return options.alpha ? focal * (wanted * *options.alpha + (1 - wanted) * (1 - *options.alpha)) : focal;
          },
          {.outputs = entropy.outputs(), .means_last = true, .of_examples = true}};
}

Loss binary_focal_cross_entropy(double gamma, std::optional<double> alpha) {
  return make_binary_focal_cross_entropy({.gamma = gamma, .alpha = alpha});
}

Loss make_categorical_cross_entropy(const ClassLossOptions& options) {
  static constexpr const char* kName = "categorical_cross_entropy";
  check_smoothing(kName, options.label_smoothing);
  if (options.ignore_class) {
    throw invalid_argument("loss ", kName, ": ignore_class is ", *options.ignore_class,
                           ", but targets are distributions; expected make_sparse_categorical_cross_entropy");
  }
  return {kName,
          [options](const at::Tensor& output, const at::Tensor& target) {
            const OutputAndTarget both = alike(kName, output, target);
            const at::Tensor wanted = smoothed(both.target, options.label_smoothing, both.target.size(-1));
            return -(wanted * log_probabilities(both.output, options.from_logits)).sum(-1);
          },
          {.outputs = options.from_logits ? Outputs::kClassLogits : Outputs::kProbabilities, .of_examples = true}};
}

Loss make_sparse_categorical_cross_entropy(const ClassLossOptions& options) {
  static constexpr const char* kName = "sparse_categorical_cross_entropy";
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::min();  // no class stands for "do not count"
  check_smoothing(kName, options.label_smoothing);
  const bool ignores = options.ignore_class.has_value();
  const auto classes_in = [ignores](const at::Tensor& output, const at::Tensor& target) {
    const at::Tensor classes = class_of_each_row(str_cat("loss ", kName), output, target);
    // A label may be that number: as little a class as the next one, which is refused.
    return target.scalar_type() == at::kLong && !ignores ? classes.clamp_min(kNone + 1) : classes;
  };
  // Libtorch divides the losses of each example, however few, among all threads, which takes longer than these do; and
  // the gradients again. It does not do so with their mean. Half of the digits would be too few for that.
  const auto mean = [=](const at::Tensor& output, const at::Tensor& target) {
    if (output.dim() != 2 || c10::isReducedFloatingType(output.scalar_type())) return at::Tensor();
    return at::cross_entropy_loss(output, classes_in(output, target), {}, at::Reduction::Mean, kNone);
  };
  const bool has_mean = options.from_logits && !options.ignore_class && options.label_smoothing == 0;
  return {kName,
          [=](const at::Tensor& output, const at::Tensor& target) {
            at::Tensor classes = classes_in(output, target);
            if (options.from_logits && output.dim() == 2) {  // one op forth, and one back
              return at::cross_entropy_loss(output, classes, {}, at::Reduction::None,
                                            options.ignore_class.value_or(kNone), options.label_smoothing);
            }
            at::Tensor ignored;
            if (options.ignore_class) {
              ignored = classes.eq(*options.ignore_class);
              classes = classes.masked_fill(ignored, 0);
            }
            const at::Tensor logs = log_probabilities(output, options.from_logits);
            at::Tensor each = -logs.gather(-1, classes.unsqueeze(-1)).squeeze(-1);
            if (options.label_smoothing > 0) {
              each = each * (1 - options.label_smoothing) - logs.mean(-1) * options.label_smoothing;
            }
            return ignored.defined() ? each.masked_fill(ignored, 0) : each;
          },
          {.outputs = options.from_logits ? Outputs::kClassLogits : Outputs::kProbabilities,
           .ignored_class = options.ignore_class,
           .of_examples = true,
           .mean = has_mean ? mean : decltype(LossOptions::mean)()}};
}

Loss make_categorical_focal_cross_entropy(const CategoricalFocalOptions& options) {
  static constexpr const char* kName = "categorical_focal_cross_entropy";
  check_smoothing(kName, options.label_smoothing);
  return {kName,
          [options](const at::Tensor& output, const at::Tensor& target) {
            const OutputAndTarget both = alike(kName, output, target);
            const int64_t classes = both.output.size(-1);
            const auto given = static_cast<int64_t>(options.alpha.size());
            if (given != 1 && given != classes) {
              throw invalid_argument("loss ", kName, ": alpha has ", given,
                                     " numbers, expected one or one for each of ", classes, " classes");
            }
            const at::Tensor wanted = smoothed(both.target, options.label_smoothing, classes);
            const at::Tensor logs = log_probabilities(both.output, options.from_logits);
            const at::Tensor alpha = at::tensor(options.alpha, at::kDouble).to(logs.options().requires_grad(false));
            return -(wanted * logs * (1 - logs.exp()).clamp_min(0).pow(options.gamma) * alpha).sum(-1);
          },
          {.outputs = options.from_logits ? Outputs::kClassLogits : Outputs::kProbabilities, .of_examples = true}};
}

Loss triplet(double margin) {
  return {"triplet", [margin](const at::Tensor& output, const at::Tensor& target) {
            if (output.dim() != 2 || target.numel() != output.size(0)) {
              throw invalid_argument("loss triplet: the output is ", spec_of(output).to_string(), " and the target ",
                                     spec_of(target).to_string(), ", expected a vector and a class for each example");
            }
            const at::Tensor classes = target.flatten();
            const at::Tensor same = classes.unsqueeze(0) == classes.unsqueeze(1);
            // No root of 0: its slope has no end.
            const at::Tensor squares = (output.unsqueeze(0) - output.unsqueeze(1)).square().sum(-1);
            const at::Tensor distances = (squares + 1e-12).sqrt();
            const at::Tensor farthest = at::amax(distances * same.to(distances.scalar_type()), {1});
            const at::Tensor nearest = at::amin(distances.masked_fill(same, 1e9), {1});
            return (farthest - nearest + margin).clamp_min(0);
          }};
}

namespace {

constexpr double kImpossible = -1e30;  // whose difference is a number, where that of infinities is none

// libtorch's op looks at the lengths, so it cannot be traced; this is the same sum over all ways, time by time. A state
// is a place in `classes` with a blank before, between and after; from each a way stays, goes on, or leaves a blank out
// between two that are different.
at::Tensor ctc_log_likelihood(const at::Tensor& logs, const at::Tensor& classes, const at::Tensor& lengths,
                              int64_t blank) {
  const int64_t examples = logs.size(0), times = logs.size(1), most = classes.size(1);
  const at::Tensor blanks = at::full_like(classes, blank);
  const at::Tensor last = at::full({examples, 1}, blank, classes.options());
  const at::Tensor states = at::cat({at::stack({blanks, classes}, 2).flatten(1), last}, 1);  // [examples, 2 most + 1]
  const int64_t count = 2 * most + 1;
  const at::Tensor scores = logs.gather(2, states.unsqueeze(1).expand({examples, times, count}));
  auto impossible = [&](int64_t columns) { return at::full({examples, columns}, kImpossible, logs.options()); };
  auto later = [&](const at::Tensor& ways, int64_t by) {
    return by >= count ? impossible(count) : at::cat({impossible(by), ways.narrow(1, 0, count - by)}, 1);
  };
  at::Tensor skips = at::zeros({examples, count}, at::kBool);
  if (most > 1) {
    const at::Tensor here = states.narrow(1, 2, count - 2), before = states.narrow(1, 0, count - 2);
    skips = at::cat({skips.narrow(1, 0, 2), here.ne(blank).logical_and(here.ne(before))}, 1);
  }
  const int64_t starts = std::min<int64_t>(2, count);
  at::Tensor ways = at::cat({scores.select(1, 0).narrow(1, 0, starts), impossible(count - starts)}, 1);
  for (int64_t time = 1; time < times; ++time) {
    const at::Tensor leaps = later(ways, 2).masked_fill(skips.logical_not(), kImpossible);
    ways = at::logaddexp(at::logaddexp(ways, later(ways, 1)), leaps) + scores.select(1, time);
  }
  const at::Tensor ends = (2 * lengths).unsqueeze(1);
  const at::Tensor at_blank = ways.gather(1, ends).squeeze(1);
  const at::Tensor at_class = ways.gather(1, (ends - 1).clamp_min(0)).squeeze(1);
  return at::logaddexp(at_blank, at_class.masked_fill(lengths.eq(0), kImpossible));
}

}  // namespace

Loss ctc(int64_t blank, bool zero_infinity) {
  return {"ctc",
          [blank, zero_infinity](const at::Tensor& output, const at::Tensor& target) {
            if (output.dim() != 3 || target.dim() != 2 || target.size(0) != output.size(0)) {
              throw invalid_argument("loss ctc: the output is ", spec_of(output).to_string(), " and the target ",
                                     spec_of(target).to_string(),
                                     ", expected [examples, times, classes] and [examples, most]");
            }
            const at::Tensor classes = target.to(at::kLong);
            const at::Tensor lengths = (classes != blank).sum(1);
            const at::Tensor ways = ctc_log_likelihood(at::log_softmax(output, -1), classes, lengths, blank);
            return (-ways).masked_fill(ways < kImpossible / 2,
                                       zero_infinity ? 0 : std::numeric_limits<double>::infinity());
          },
          Outputs::kClassLogits};
}

at::Tensor probabilities_of(const at::Tensor& output, Outputs kind) {
  if (kind == Outputs::kLogits) return at::sigmoid(output);
  if (kind == Outputs::kClassLogits) return at::softmax(output, -1);
  return output;
}

at::Tensor outputs_as(Outputs wanted, const at::Tensor& output, Outputs kind) {
  if (wanted == kind || kind == Outputs::kValues) return output;
  const at::Tensor probabilities = probabilities_of(output, kind);
  if (wanted == Outputs::kLogits) return at::logit(probabilities, kEpsilon);
  if (wanted == Outputs::kClassLogits) return probabilities.clamp_min(kEpsilon).log();
  return probabilities;
}

}  // namespace muster
