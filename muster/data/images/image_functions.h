// What can be done to one picture: sizes, crops, turns and colours.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace muster {

enum class ResizeMethod { kBilinear = 0, kNearest = 1 };

struct ResizeOptions {
  ResizeMethod method = ResizeMethod::kBilinear;
  bool antialias = false;  // bilinear only: when shrinking, every pixel counts
  bool to_uint8 = false;   // rounded and limited to 0 … 255
};

// Functions of one picture: uint8 or float32 [height, width, channels] in the memory of the CPU, none of them 0. They
// return new memory of the same type unless said otherwise, and throw Error{kInvalidArgument} for anything else.
// They may be called from any thread, and start none.

// Throws in the name of `function` unless `image` is such a picture.
void check_image(const at::Tensor& image, std::string_view function);

// As tf.image.resize: half-pixel centres, with and without antialias. Bilinear gives float32 in the range it came in
// (0 … 255 for uint8) unless `to_uint8`, nearest keeps the type.
at::Tensor resize_image(const at::Tensor& image, int64_t height, int64_t width, const ResizeOptions& options = {});
at::Tensor crop_image(const at::Tensor& image, int64_t top, int64_t left, int64_t height, int64_t width);
at::Tensor flip_image_left_right(const at::Tensor& image);
at::Tensor flip_image_up_down(const at::Tensor& image);
// Counter-clockwise about the centre, bilinear, at the same size; what comes from outside is 0.
at::Tensor rotate_image(const at::Tensor& image, double degrees);

// The colours of uint8 are computed in floats, rounded and limited to 0 … 255; TensorFlow truncates after scaling by
// 255.5, so it may differ by 1. Floats are not limited.
// Adds `delta`, of which 1 is the whole range of uint8; to floats it is added as it is.
at::Tensor adjust_brightness(const at::Tensor& image, double delta);
// (x - mean) * factor + mean, with each channel's mean over the picture.
at::Tensor adjust_contrast(const at::Tensor& image, double factor);
// Multiplies the saturation (of hue, saturation, value) and limits it to 1. 3 channels. Pixels that have a channel
// below 0 keep their colours.
at::Tensor adjust_saturation(const at::Tensor& image, double factor);
// (x - mean) / deviation as float32, in the range that the picture has. One number each, or one per channel.
at::Tensor normalize_image(const at::Tensor& image, const std::vector<double>& mean,
                           const std::vector<double>& deviation);
// float32: uint8 divided by 255; floats as they are.
at::Tensor image_to_float(const at::Tensor& image);

}  // namespace muster
