// A description of what is done to pictures between decoding and training, and its runner.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "muster/data/images/image_decoder.h"
#include "muster/data/images/image_functions.h"

namespace muster {

// One step as plain data, to be stored and sent. What the numbers mean depends on the kind; the makers know.
struct ImageStep {
  // Numbers are part of what is sent: new ones are added at the end.
  enum class Kind {
    kResize = 0,
    kCenterCrop = 1,
    kRandomCrop = 2,
    kRandomResizedCrop = 3,
    kFlipLeftRight = 4,
    kFlipUpDown = 5,
    kRotate = 6,
    kBrightness = 7,
    kContrast = 8,
    kSaturation = 9,
    kNormalize = 10,
    kToFloat = 11,
  };

  Kind kind;
  std::vector<double> numbers;

  static ImageStep resize(int64_t height, int64_t width, const ResizeOptions& options = {});
  static ImageStep center_crop(int64_t height, int64_t width);
  static ImageStep random_crop(int64_t height, int64_t width);
  // A window of `least_area` … `most_area` of the picture's, its width / height between the ratios (uniform in their
  // logarithm), made height x width. After 10 tries that do not fit, the largest in the middle that the ratios allow.
  static ImageStep random_resized_crop(int64_t height, int64_t width, double least_area = 0.08, double most_area = 1,
                                       double least_ratio = 3. / 4, double most_ratio = 4. / 3,
                                       const ResizeOptions& options = {});
  static ImageStep random_flip_left_right(double probability = 0.5);
  static ImageStep random_flip_up_down(double probability = 0.5);
  static ImageStep rotate(double max_degrees);  // by -max_degrees … max_degrees
  // In ImageSteps, 1 is the whole range: 255 for a picture that came as uint8, until to_float().
  static ImageStep brightness(double delta);  // by -delta … delta
  static ImageStep contrast(double least, double most);
  static ImageStep saturation(double least, double most);
  static ImageStep normalize(const std::vector<double>& mean, const std::vector<double>& deviation);
  static ImageStep to_float();  // 0 … 1, also of a picture that a resize before made float32 in 0 … 255

  bool operator==(const ImageStep&) const = default;
};

// "random_crop"; "kind 99" for a number that is no kind.
std::string name_of(ImageStep::Kind kind);

// Steps one after the other. A value; may be called from several threads at once.
class ImageSteps {
 public:
  // Throws Error{kInvalidArgument} that names the step and what is wrong with it.
  explicit ImageSteps(std::vector<ImageStep> steps);

  const std::vector<ImageStep>& steps() const { return steps_; }

  // All chance comes from `seed`, by integers and doubles that are the same on every machine; floats of the pixels may
  // differ in their last bit where a compiler fuses products and sums. The result may be `image` itself when no step
  // changed it.
  at::Tensor operator()(const at::Tensor& image, uint64_t seed) const;

  // The same of decode_image(bytes, options). If the first step is a crop, no more of a JPEG is decoded than it keeps.
  at::Tensor decode(std::string_view bytes, const DecodeOptions& options, uint64_t seed) const;

 private:
  std::vector<ImageStep> steps_;
};

}  // namespace muster
