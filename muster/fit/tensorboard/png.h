#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace muster {

// A PNG file of a picture, uint8 [height, width, channels] with 1 (grey), 2 (grey and alpha), 3 (RGB) or 4 (RGBA)
// channels. Needs no libpng: a build without it writes pictures, too. REQUIRES: the tensor is such a one.
std::string encode_png(const at::Tensor& pixels);

}  // namespace muster
