#include <ATen/ops/empty.h>

#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "muster/base/status.h"
#include "muster/data/preprocessing/layer_state.h"
#include "muster/data/preprocessing/layer_values.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

constexpr std::string_view kCategoryEncoding = "category_encoding", kDiscretization = "discretization",
                           kNormalization = "normalization";
constexpr float kKerasEpsilon = 1e-7f;  // keras.backend.epsilon()

class CategoryEncoding final : public Preprocessing {
 public:
  explicit CategoryEncoding(const CategoryEncodingOptions& options) : options_(options) {
    check_option(kCategoryEncoding, "num_tokens", options.num_tokens, 1, kMostCategories);
    if (options.output_mode == OutputMode::kInt) {
      throw invalid_argument(kCategoryEncoding,
                             ": output_mode \"int\", expected \"one_hot\", \"multi_hot\" or \"count\"");
    }
    name_of(options.output_mode);  // throws for a number that is none
  }

  Column operator()(const Column& in) const override {
    const at::Tensor categories = integers_in(kCategoryEncoding, in);
    const int64_t* values = categories.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < categories.numel(); ++i) {
      if (values[i] < 0 || values[i] >= options_.num_tokens) {
        throw invalid_argument(kCategoryEncoding, ": got ", values[i], ", expected 0 to ", options_.num_tokens - 1);
      }
    }
    return encoded(kCategoryEncoding, options_.output_mode, options_.num_tokens, categories);
  }

  State state() const override {
    return {std::string(kCategoryEncoding),
            {{"num_tokens", number_column(options_.num_tokens)},
             {"output_mode", text_column(name_of(options_.output_mode))}}};
  }

 private:
  const CategoryEncodingOptions options_;
};

class Discretization final : public Preprocessing {
 public:
  Discretization(std::vector<float> boundaries, OutputMode mode) : boundaries_(std::move(boundaries)), mode_(mode) {
    name_of(mode);  // throws for a number that is none
    if (boundaries_.size() >= static_cast<size_t>(kMostCategories)) {
      throw invalid_argument(kDiscretization, ": ", boundaries_.size(), " boundaries are too many");
    }
    for (size_t i = 0; i < boundaries_.size(); ++i) {
      if (std::isnan(boundaries_[i]) || (i > 0 && boundaries_[i] < boundaries_[i - 1])) {
        throw invalid_argument(kDiscretization, ": boundary ", i, " is ", boundaries_[i],
                               i == 0 ? "" : str_cat(" after ", boundaries_[i - 1]), ", expected ascending numbers");
      }
    }
  }

  Column operator()(const Column& in) const override {
    const at::Tensor numbers = floats_in(kDiscretization, in);
    const at::Tensor bins = empty_indices(numbers.sizes());
    const float* values = numbers.const_data_ptr<float>();
    int64_t* out = bins.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < numbers.numel(); ++i) {
      out[i] = std::upper_bound(boundaries_.begin(), boundaries_.end(), values[i]) - boundaries_.begin();
    }
    return encoded(kDiscretization, mode_, static_cast<int64_t>(boundaries_.size()) + 1, bins);
  }

  bool elementwise() const override { return mode_ == OutputMode::kInt; }
  State state() const override {
    PlainTensors plain;
    at::Tensor boundaries = at::empty({static_cast<int64_t>(boundaries_.size())}, at::TensorOptions(at::kFloat));
    std::copy(boundaries_.begin(), boundaries_.end(), boundaries.mutable_data_ptr<float>());
    return {std::string(kDiscretization),
            {{"bin_boundaries", boundaries}, {"output_mode", text_column(name_of(mode_))}}};
  }

 private:
  const std::vector<float> boundaries_;
  const OutputMode mode_;
};

// A few of many values, in ascending order, and for how many each stands. float32, as in Keras, so that the boundaries
// are the same.
struct QuantileSummary {
  std::vector<float> values, weights;

  // Takes every so many of the values, such that about 1 / epsilon are left: the last of each group, as Keras 3.15
  // does. Keras 2 and the first versions of Keras 3 take the one after it.
  QuantileSummary(std::vector<float> all, double epsilon) {
    std::sort(all.begin(), all.end());
    const double step = std::max(static_cast<double>(all.size()) / (1.0 / epsilon), 1.0);
    for (auto i = static_cast<size_t>(step - 1); i < all.size(); i += static_cast<size_t>(step)) {
      values.push_back(all[i]);
      weights.push_back(static_cast<float>(step));
    }
  }

  // Those of `other` come first among equals.
  void merge(const QuantileSummary& other) {
    QuantileSummary merged = other;
    merged.values.insert(merged.values.end(), values.begin(), values.end());
    merged.weights.insert(merged.weights.end(), weights.begin(), weights.end());
    std::vector<size_t> order(merged.values.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return merged.values[a] < merged.values[b]; });
    values.clear();
    weights.clear();
    for (const size_t place : order) {
      values.push_back(merged.values[place]);
      weights.push_back(merged.weights[place]);
    }
  }

  // The values at each epsilon of the weight, in between the nearest two.
  void compress(double epsilon) {
    if (static_cast<double>(values.size()) * epsilon < 1) return;
    std::vector<double> reached(values.size()), share(values.size()), known(values.begin(), values.end());
    float sum = 0;
    for (size_t i = 0; i < weights.size(); ++i) reached[i] = sum += weights[i];
    for (size_t i = 0; i < weights.size(); ++i) {
      share[i] = static_cast<float>(reached[i]) / static_cast<float>(reached.back());
    }
    const auto parts = static_cast<size_t>(std::ceil(1.0 / epsilon));
    values.clear();
    weights.clear();
    double before = 0;
    for (size_t i = 0; i < parts; ++i) {
      const double wanted = epsilon + static_cast<double>(i) * epsilon;
      const double weight = interpolated(wanted, share, reached);
      values.push_back(static_cast<float>(interpolated(wanted, share, known)));
      weights.push_back(static_cast<float>(weight - std::exchange(before, weight)));
    }
  }

 private:
  // numpy.interp.
  static double interpolated(double x, const std::vector<double>& xs, const std::vector<double>& ys) {
    const auto above = static_cast<size_t>(std::upper_bound(xs.begin(), xs.end(), x) - xs.begin());
    if (above == 0) return ys.front();
    if (above == xs.size() || xs[above - 1] == x) return ys[above - 1];
    const double slope = (ys[above] - ys[above - 1]) / (xs[above] - xs[above - 1]);
    return slope * (x - xs[above - 1]) + ys[above - 1];
  }
};

class DiscretizationAdapter final : public Adapter {
 public:
  explicit DiscretizationAdapter(const DiscretizationAdapterOptions& options) : options_(options) {
    check_option(kDiscretization, "num_bins", options.num_bins, 1, kMostCategories);
    if (!(options.epsilon > 0 && options.epsilon < 1)) {
      throw invalid_argument(kDiscretization, ": epsilon ", options.epsilon, ": expected more than 0 and less than 1");
    }
  }

  void see(const Column& in) override {
    const at::Tensor numbers = floats_in(kDiscretization, in);
    const float* begin = numbers.const_data_ptr<float>();
    const float* end = begin + numbers.numel();
    if (const float* odd = std::find_if_not(begin, end, [](float value) { return std::isfinite(value); }); odd != end) {
      throw invalid_argument(kDiscretization, ": got ", *odd, " to learn from, expected finite numbers");
    }
    if (begin == end) return;
    const QuantileSummary summary(std::vector<float>(begin, end), options_.epsilon);
    summary_.merge(summary);
    summary_.compress(options_.epsilon);
  }

  std::shared_ptr<const Preprocessing> finish() override {
    QuantileSummary summary = summary_;
    if (summary.values.empty()) throw failed_precondition(kDiscretization, ": no numbers were seen to learn from");
    summary.compress(1.0 / static_cast<double>(options_.num_bins));
    summary.values.pop_back();
    return std::make_shared<Discretization>(std::move(summary.values), options_.output_mode);
  }

 private:
  const DiscretizationAdapterOptions options_;
  QuantileSummary summary_{{}, 0.5};
};

// The axes of a tensor of so many dimensions, ascending.
std::vector<int64_t> kept_axes(const std::vector<int64_t>& axis, at::IntArrayRef sizes) {
  const auto dimensions = static_cast<int64_t>(sizes.size());
  std::vector<int64_t> kept;
  for (const int64_t given : axis) {
    const int64_t each = given < 0 ? given + dimensions : given;
    if (given < -dimensions || given >= dimensions || std::find(kept.begin(), kept.end(), each) != kept.end()) {
      throw invalid_argument(kNormalization, ": got the shape [", absl::StrJoin(sizes, ", "), "], expected the axes [",
                             absl::StrJoin(axis, ", "),
                             "] in it; {.axis = {}} has one mean and variance for all, as for a single number");
    }
    kept.push_back(each);
  }
  std::sort(kept.begin(), kept.end());
  return kept;
}

class Normalization final : public Preprocessing {
 public:
  // Keeps copies of the tensors.
  explicit Normalization(const NormalizationOptions& options) : axis_(options.axis), invert_(options.invert) {
    for (const auto* given : {&options.mean, &options.variance}) {
      if (!given->defined()) {
        throw invalid_argument(kNormalization, ": there is no ", given == &options.mean ? "mean" : "variance");
      }
    }
    PlainTensors plain;
    mean_ = floats_in(kNormalization, options.mean).clone();
    variance_ = floats_in(kNormalization, options.variance).clone();
    if (mean_.sizes() != variance_.sizes() || mean_.dim() > static_cast<int64_t>(axis_.size())) {
      throw invalid_argument(kNormalization, ": mean of the shape [", absl::StrJoin(mean_.sizes(), ", "),
                             "] and variance of [", absl::StrJoin(variance_.sizes(), ", "),
                             "], expected two equal ones", " of at most ", axis_.size(), " dimensions");
    }
    scale_ = variance_.clone();
    const float* mean = mean_.const_data_ptr<float>();
    float* scale = scale_.mutable_data_ptr<float>();
    for (int64_t i = 0; i < mean_.numel(); ++i) {
      if (!std::isfinite(mean[i]) || !std::isfinite(scale[i]) || scale[i] < 0) {
        throw invalid_argument(kNormalization, ": mean ", mean[i], " and variance ", scale[i], " at ", i,
                               ", expected finite ones and no negative variance");
      }
      scale[i] = std::max(std::sqrt(scale[i]), kKerasEpsilon);
    }
  }

  Column operator()(const Column& in) const override {
    const at::Tensor x = floats_in(kNormalization, in);
    const std::vector<int64_t> kept = kept_axes(axis_, x.sizes());
    std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
    for (int64_t i = 1; i <= mean_.dim(); ++i) {
      const int64_t axis = kept[kept.size() - static_cast<size_t>(i)], size = mean_.size(-i);
      if (size != 1 && size != x.size(axis)) {
        throw invalid_argument(kNormalization, ": got ", words_for(in), ", expected ", size, " along axis ", axis);
      }
      shape[static_cast<size_t>(axis)] = size;
    }
    PlainTensors plain;
    const at::Tensor mean = mean_.reshape(shape), scale = scale_.reshape(shape);
    return invert_ ? x.mul(scale).add_(mean) : x.sub(mean).div_(scale);
  }

  State state() const override {
    return {std::string(kNormalization),
            {{"axis", numbers_column(axis_)},
             {"mean", mean_},
             {"variance", variance_},
             {"invert", number_column(invert_ ? 1 : 0)}}};
  }

 private:
  const std::vector<int64_t> axis_;
  const bool invert_;
  at::Tensor mean_, variance_, scale_;
};

class NormalizationAdapter final : public Adapter {
 public:
  explicit NormalizationAdapter(const NormalizationOptions& options) : options_(options) {
    if (options.mean.defined() || options.variance.defined()) {
      throw invalid_argument(kNormalization, ": an adapter learns mean and variance, expected none");
    }
  }

  void see(const Column& in) override {
    const at::Tensor checked = floats_in(kNormalization, in);
    const std::vector<int64_t> kept = kept_axes(options_.axis, in.sizes());
    std::vector<int64_t> order, sizes;
    for (int64_t axis = 0; axis < checked.dim(); ++axis) {
      if (std::find(kept.begin(), kept.end(), axis) == kept.end()) order.push_back(axis);
    }
    for (const int64_t axis : kept) {
      order.push_back(axis);
      sizes.push_back(checked.size(axis));
    }
    PlainTensors plain;
    if (!mean_.defined()) {
      mean_ = at::empty(sizes, at::TensorOptions(at::kDouble)).zero_();
      deviation_ = mean_.clone();
    } else if (mean_.sizes() != at::IntArrayRef(sizes)) {
      throw invalid_argument(kNormalization, ": got ", words_for(in), ", expected [",
                             absl::StrJoin(mean_.sizes(), ", "), "] along the axes [",
                             absl::StrJoin(options_.axis, ", "), "] as before");
    }
    if (checked.numel() == 0) return;
    const int64_t rows = checked.numel() / mean_.numel();
    std::vector<int64_t> matrix{rows};
    matrix.insert(matrix.end(), sizes.begin(), sizes.end());
    const at::Tensor x = checked.to(at::kDouble).permute(order).reshape(matrix);
    // Along other axes each row of what is read may have several numbers of a kind.
    const int64_t read = !order.empty() && order.front() == 0 ? checked.size(0) : rows;
    expect_finite(x.contiguous(), rows / read);
    const at::Tensor batch_mean = x.mean(0), off = batch_mean.sub(mean_);
    const double weight = static_cast<double>(rows) / static_cast<double>(rows_ + rows);
    deviation_.add_(x.sub(batch_mean).square_().sum(0)).add_(off.square().mul_(static_cast<double>(rows_) * weight));
    mean_.add_(off, weight);
    rows_ += rows;
    read_ += read;
  }

  std::shared_ptr<const Preprocessing> finish() override {
    if (rows_ == 0) throw failed_precondition(kNormalization, ": no numbers were seen to learn from");
    PlainTensors plain;
    return normalization({.axis = options_.axis,
                          .mean = mean_,
                          .variance = deviation_.div(static_cast<double>(rows_)),
                          .invert = options_.invert});
  }

 private:
  // One that is not would be in the mean of all. `each`: so many of the rows are of one that was read.
  void expect_finite(const at::Tensor& rows, int64_t each) const {
    const double* begin = rows.const_data_ptr<double>();
    const double* end = begin + rows.numel();
    const double* odd = std::find_if_not(begin, end, [](double value) { return std::isfinite(value); });
    if (odd == end) return;
    throw invalid_argument(kNormalization, ": got ", *odd, " to learn from, in row ",
                           read_ + (odd - begin) / mean_.numel() / each,
                           " of what was seen (the first is 0), expected finite numbers; those that are missing have "
                           "to be left out or replaced");
  }

  const NormalizationOptions options_;
  int64_t rows_ = 0;             // numbers of each kind
  int64_t read_ = 0;             // rows of what was seen, along its first axis
  at::Tensor mean_, deviation_;  // float64; the latter is the sum of the squares of the distances to the mean
};

}  // namespace

std::shared_ptr<const Preprocessing> category_encoding(const CategoryEncodingOptions& options) {
  return std::make_shared<CategoryEncoding>(options);
}

std::shared_ptr<const Preprocessing> category_encoding_from(StateReader& state) {
  return category_encoding({.num_tokens = state.number("num_tokens"), .output_mode = state.output_mode()});
}

std::shared_ptr<const Preprocessing> discretization(const DiscretizationOptions& options) {
  if (options.bin_boundaries.empty()) throw invalid_argument(kDiscretization, ": there are no bin_boundaries");
  return std::make_shared<Discretization>(options.bin_boundaries, options.output_mode);
}

std::unique_ptr<Adapter> discretization_adapter(const DiscretizationAdapterOptions& options) {
  return std::make_unique<DiscretizationAdapter>(options);
}

std::shared_ptr<const Preprocessing> discretization_from(StateReader& state) {
  const at::Tensor boundaries = state.floats("bin_boundaries");
  if (boundaries.dim() != 1) throw invalid_argument(kDiscretization, ": bin_boundaries are no row");
  const float* begin = boundaries.const_data_ptr<float>();
  // None are what an adapter learns for a single bin.
  return std::make_shared<Discretization>(std::vector<float>(begin, begin + boundaries.numel()), state.output_mode());
}

std::shared_ptr<const Preprocessing> normalization(const NormalizationOptions& options) {
  return std::make_shared<Normalization>(options);
}

std::unique_ptr<Adapter> normalization_adapter(const NormalizationOptions& options) {
  return std::make_unique<NormalizationAdapter>(options);
}

std::shared_ptr<const Preprocessing> normalization_from(StateReader& state) {
  return normalization({.axis = state.numbers("axis"),
                        .mean = state.floats("mean"),
                        .variance = state.floats("variance"),
                        .invert = state.flag("invert")});
}

}  // namespace muster
