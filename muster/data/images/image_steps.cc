#include "muster/data/images/image_steps.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <utility>

#include "muster/base/status.h"
#include "muster/runtime/splitmix.h"

namespace muster {
namespace {

using StepKind = ImageStep::Kind;

constexpr int64_t kLongestStepSide = 65535;
constexpr int64_t kMostStepPixels = 178'956'970;

// A stream of SplitMix64. The seed is mixed first, so that seeds a step of the stream apart have nothing in common.
class StepChance {
 public:
  explicit StepChance(uint64_t seed) : next_{SplitMix{seed}()} {}

  double uniform(double least, double most) { return least + (most - least) * unit(); }
  int64_t below(int64_t count) { return static_cast<int64_t>(unit() * static_cast<double>(count)); }

 private:
  double unit() { return static_cast<double>(next_() >> 11) * 0x1p-53; }  // below 1

  SplitMix next_;
};

struct CropBox {
  int64_t top, left, height, width;
};

CropBox resized_crop_box(int64_t height, int64_t width, const std::vector<double>& numbers, StepChance& chance) {
  const double least_ratio = numbers[4], most_ratio = numbers[5];
  const auto area = static_cast<double>(height * width);
  for (int tries = 0; tries < 10; ++tries) {
    const double target = area * chance.uniform(numbers[2], numbers[3]);
    const double ratio = least_ratio * std::pow(most_ratio / least_ratio, chance.uniform(0, 1));
    const double wide = std::round(std::sqrt(target * ratio)), high = std::round(std::sqrt(target / ratio));
    if (wide < 1 || high < 1 || wide > static_cast<double>(width) || high > static_cast<double>(height)) continue;
    const auto box_height = static_cast<int64_t>(high), box_width = static_cast<int64_t>(wide);
    const int64_t top = chance.below(height - box_height + 1);
    return {.top = top, .left = chance.below(width - box_width + 1), .height = box_height, .width = box_width};
  }
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  int64_t box_height = height, box_width = width;
  if (ratio < least_ratio) {
    box_height = std::clamp<int64_t>(std::llround(static_cast<double>(width) / least_ratio), 1, height);
  } else if (ratio > most_ratio) {
    box_width = std::clamp<int64_t>(std::llround(static_cast<double>(height) * most_ratio), 1, width);
  }
  return {.top = (height - box_height) / 2, .left = (width - box_width) / 2, .height = box_height, .width = box_width};
}

// The window that a crop takes of a picture.
CropBox crop_box(const ImageStep& step, int64_t height, int64_t width, StepChance& chance) {
  if (step.kind == StepKind::kRandomResizedCrop) return resized_crop_box(height, width, step.numbers, chance);
  const auto high = static_cast<int64_t>(step.numbers[0]), wide = static_cast<int64_t>(step.numbers[1]);
  const int64_t down = height - high, across = width - wide;
  if (down < 0 || across < 0) {
    throw invalid_argument("the picture of ", height, " x ", width, " (height x width) is smaller than the crop of ",
                           high, " x ", wide);
  }
  if (step.kind == StepKind::kCenterCrop) return {.top = down / 2, .left = across / 2, .height = high, .width = wide};
  const int64_t top = chance.below(down + 1);
  return {.top = top, .left = chance.below(across + 1), .height = high, .width = wide};
}

struct StepRule {
  std::string_view name;
  std::vector<std::string_view> numbers;  // what each is called
};

const StepRule* step_rule(StepKind kind) {
  static const std::array<StepRule, 12> rules{{
      {"resize", {"height", "width", "method", "antialias", "to_uint8"}},
      {"center_crop", {"height", "width"}},
      {"random_crop", {"height", "width"}},
      {"random_resized_crop",
       {"height", "width", "least_area", "most_area", "least_ratio", "most_ratio", "method", "antialias", "to_uint8"}},
      {"random_flip_left_right", {"probability"}},
      {"random_flip_up_down", {"probability"}},
      {"rotate", {"max_degrees"}},
      {"brightness", {"delta"}},
      {"contrast", {"least", "most"}},
      {"saturation", {"least", "most"}},
      {"normalize", {}},
      {"to_float", {}},
  }};
  const auto number = static_cast<size_t>(kind);
  return number < rules.size() ? &rules[number] : nullptr;
}

// What is wrong with the step; empty when nothing is.
std::string complaint_about_step(const ImageStep& step) {
  const StepRule* rule = step_rule(step.kind);
  if (rule == nullptr) return "is no kind of step that this Muster knows";
  const std::vector<double>& numbers = step.numbers;
  for (const double number : numbers) {
    if (!std::isfinite(number)) return str_cat("has the number ", number, "; expected finite ones");
  }
  if (step.kind == StepKind::kNormalize) {
    if (numbers.empty() || numbers.size() % 2 != 0) {
      return str_cat("has ", numbers.size(), " numbers; expected as many means as deviations, at least one");
    }
    for (size_t i = numbers.size() / 2; i < numbers.size(); ++i) {
      if (!(numbers[i] > 0)) return str_cat("deviation is ", numbers[i], "; expected more than 0");
    }
    return {};
  }
  if (numbers.size() != rule->numbers.size()) {
    return str_cat("has ", numbers.size(), " numbers; expected ", rule->numbers.size());
  }
  for (size_t i = 0; i < numbers.size(); ++i) {
    const std::string_view what = rule->numbers[i];
    const double number = numbers[i];
    if (what == "height" || what == "width") {
      if (number != std::floor(number) || number < 1 || number > kLongestStepSide) {
        return str_cat(what, " is ", number, "; expected a whole number from 1 to ", kLongestStepSide);
      }
    } else if (what == "method" || what == "antialias" || what == "to_uint8") {
      if (number != 0 && number != 1) return str_cat(what, " is ", number, "; expected 0 or 1");
    } else if (what == "probability" || what == "least_area" || what == "most_area") {
      if (number < 0 || number > 1) return str_cat(what, " is ", number, "; expected 0 to 1");
    } else if (what.ends_with("_ratio")) {
      if (number < 0.001 || number > 1000) return str_cat(what, " is ", number, "; expected 0.001 to 1000");
    } else if (number < 0) {
      return str_cat(what, " is ", number, "; expected 0 or more");
    }
    if (what.starts_with("most") && numbers[i - 1] > number) {
      return str_cat(rule->numbers[i - 1], " is ", numbers[i - 1], ", which is more than ", what, ", ", number);
    }
  }
  if (numbers.size() >= 2 && rule->numbers[0] == "height" && numbers[0] * numbers[1] > kMostStepPixels) {
    return str_cat("makes ", numbers[0], " x ", numbers[1], ", which is more than ", kMostStepPixels, " pixels");
  }
  return {};
}

ResizeOptions resize_options(const std::vector<double>& numbers, size_t at) {
  return {.method = numbers[at] == 0 ? ResizeMethod::kBilinear : ResizeMethod::kNearest,
          .antialias = numbers[at + 1] != 0,
          .to_uint8 = numbers[at + 2] != 0};
}

void append_resize_options(std::vector<double>& numbers, const ResizeOptions& options) {
  numbers.insert(numbers.end(),
                 {static_cast<double>(options.method), options.antialias ? 1. : 0., options.to_uint8 ? 1. : 0.});
}

bool is_crop(const ImageStep& step) {
  return step.kind == StepKind::kCenterCrop || step.kind == StepKind::kRandomCrop ||
         step.kind == StepKind::kRandomResizedCrop;
}

// What a crop makes of the window that it takes.
at::Tensor finished_crop(const ImageStep& step, const at::Tensor& window) {
  if (step.kind != StepKind::kRandomResizedCrop) return window;
  return resize_image(window, static_cast<int64_t>(step.numbers[0]), static_cast<int64_t>(step.numbers[1]),
                      resize_options(step.numbers, 6));
}

// `range` is what 1 means: 255 while a picture that came as uint8 was not made 0 … 1.
at::Tensor apply_step(const ImageStep& step, const at::Tensor& image, StepChance& chance, double& range) {
  const std::vector<double>& numbers = step.numbers;
  const auto whole = [&](size_t i) { return static_cast<int64_t>(numbers[i]); };
  const bool bytes = image.scalar_type() == at::kByte;
  if (bytes) range = 255;
  switch (step.kind) {
    case StepKind::kResize: return resize_image(image, whole(0), whole(1), resize_options(numbers, 2));
    case StepKind::kCenterCrop:
    case StepKind::kRandomCrop:
    case StepKind::kRandomResizedCrop: {
      const CropBox box = crop_box(step, image.size(0), image.size(1), chance);
      return finished_crop(step, crop_image(image, box.top, box.left, box.height, box.width));
    }
    case StepKind::kFlipLeftRight: return chance.uniform(0, 1) < numbers[0] ? flip_image_left_right(image) : image;
    case StepKind::kFlipUpDown: return chance.uniform(0, 1) < numbers[0] ? flip_image_up_down(image) : image;
    case StepKind::kRotate: return rotate_image(image, chance.uniform(-numbers[0], numbers[0]));
    case StepKind::kBrightness: {
      const double delta = chance.uniform(-numbers[0], numbers[0]);
      return adjust_brightness(image, bytes ? delta : delta * range);
    }
    case StepKind::kContrast: return adjust_contrast(image, chance.uniform(numbers[0], numbers[1]));
    case StepKind::kSaturation: return adjust_saturation(image, chance.uniform(numbers[0], numbers[1]));
    case StepKind::kNormalize: {
      const auto middle = numbers.begin() + static_cast<std::ptrdiff_t>(numbers.size() / 2);
      range = 1;
      return normalize_image(image, {numbers.begin(), middle}, {middle, numbers.end()});
    }
    case StepKind::kToFloat: {
      const double divisor = std::exchange(range, 1);
      return bytes || divisor == 1 ? image_to_float(image) : normalize_image(image, {0}, {divisor});
    }
  }
  return image;
}

}  // namespace

ImageStep ImageStep::resize(int64_t height, int64_t width, const ResizeOptions& options) {
  ImageStep step{Kind::kResize, {static_cast<double>(height), static_cast<double>(width)}};
  append_resize_options(step.numbers, options);
  return step;
}
ImageStep ImageStep::center_crop(int64_t height, int64_t width) {
  return {Kind::kCenterCrop, {static_cast<double>(height), static_cast<double>(width)}};
}
ImageStep ImageStep::random_crop(int64_t height, int64_t width) {
  return {Kind::kRandomCrop, {static_cast<double>(height), static_cast<double>(width)}};
}
ImageStep ImageStep::random_resized_crop(int64_t height, int64_t width, double least_area, double most_area,
                                         double least_ratio, double most_ratio, const ResizeOptions& options) {
  ImageStep step{
      Kind::kRandomResizedCrop,
      {static_cast<double>(height), static_cast<double>(width), least_area, most_area, least_ratio, most_ratio}};
  append_resize_options(step.numbers, options);
  return step;
}
ImageStep ImageStep::random_flip_left_right(double probability) { return {Kind::kFlipLeftRight, {probability}}; }
ImageStep ImageStep::random_flip_up_down(double probability) { return {Kind::kFlipUpDown, {probability}}; }
ImageStep ImageStep::rotate(double max_degrees) { return {Kind::kRotate, {max_degrees}}; }
ImageStep ImageStep::brightness(double delta) { return {Kind::kBrightness, {delta}}; }
ImageStep ImageStep::contrast(double least, double most) { return {Kind::kContrast, {least, most}}; }
ImageStep ImageStep::saturation(double least, double most) { return {Kind::kSaturation, {least, most}}; }
ImageStep ImageStep::normalize(const std::vector<double>& mean, const std::vector<double>& deviation) {
  if (mean.size() != deviation.size()) {
    throw invalid_argument("image step normalize: ", mean.size(), " means and ", deviation.size(), " deviations");
  }
  ImageStep step{Kind::kNormalize, mean};
  step.numbers.insert(step.numbers.end(), deviation.begin(), deviation.end());
  return step;
}
ImageStep ImageStep::to_float() { return {Kind::kToFloat, {}}; }

std::string name_of(ImageStep::Kind kind) {
  const StepRule* rule = step_rule(kind);
  return rule != nullptr ? std::string(rule->name) : str_cat("kind ", static_cast<int>(kind));
}

ImageSteps::ImageSteps(std::vector<ImageStep> steps) : steps_(std::move(steps)) {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const std::string complaint = complaint_about_step(steps_[i]);
    if (!complaint.empty()) throw invalid_argument("image step ", i, " (", name_of(steps_[i].kind), "): ", complaint);
  }
}

namespace {

// Says in an error of `apply` which step it was.
template <class Apply>
auto as_step(const std::vector<ImageStep>& steps, size_t number, const Apply& apply) {
  try {
    return apply();
  } catch (const Error& error) {
    throw Error(Status(error.code(), str_cat("image step ", number, " (", name_of(steps[number].kind),
                                             "): ", error.status().message())));
  }
}

at::Tensor apply_steps(const std::vector<ImageStep>& steps, size_t first, at::Tensor image, StepChance& chance,
                       double range) {
  for (size_t i = first; i < steps.size(); ++i) {
    image = as_step(steps, i, [&] { return apply_step(steps[i], image, chance, range); });
  }
  return image;
}

}  // namespace

at::Tensor ImageSteps::operator()(const at::Tensor& image, uint64_t seed) const {
  check_image(image, "image steps");
  StepChance chance(seed);
  return apply_steps(steps_, 0, image, chance, /*range=*/1);
}

at::Tensor ImageSteps::decode(std::string_view bytes, const DecodeOptions& options, uint64_t seed) const {
  const bool jpeg = bytes.starts_with("\xff\xd8\xff");
  // A smaller scale is chosen by the sides of what is decoded, so there the whole picture is.
  if (steps_.empty() || !is_crop(steps_[0]) || !jpeg || options.scale_to > 0) {
    return (*this)(decode_image(bytes, options), seed);
  }
  StepChance chance(seed);
  const ImageSize size = image_size(bytes);
  const CropBox box = as_step(steps_, 0, [&] { return crop_box(steps_[0], size.height, size.width, chance); });
  const at::Tensor window = decode_and_crop_jpeg(bytes, box.top, box.left, box.height, box.width, options);
  return apply_steps(steps_, 1, as_step(steps_, 0, [&] { return finished_crop(steps_[0], window); }), chance,
                     /*range=*/255);
}

}  // namespace muster
