// From the bytes of a picture file to a tensor of its pixels.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace muster {

struct ImageSize {
  int64_t height, width;
  int64_t channels;  // 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA: those that decoding with `channels` = 0 gives

  bool operator==(const ImageSize&) const = default;
};

struct DecodeOptions {
  // 1 grey, 3 RGB, 4 RGBA (of a PNG only; opaque where the file has no alpha), 0 as in the file. Alpha that is not
  // asked for is dropped, not blended.
  int64_t channels = 3;
  // Above 0, a JPEG is decoded at 1/2, 1/4 or 1/8 of its size as long as both sides keep at least this many pixels:
  // most of the work is then never done. A PNG keeps its size.
  int64_t scale_to = 0;
  // A picture of more is refused before memory is asked for. So is one that says it has more than its file can hold:
  // 2048 times the file's bytes in samples for a JPEG, 1032 times in packed rows (what deflate can do) for a PNG.
  int64_t most_pixels = 178'956'970;
  // A JPEG's faster and less exact inverse transform, which is what tf.io.decode_jpeg uses unless told
  // INTEGER_ACCURATE.
  bool fast_transform = false;
};

// All three tell PNG and JPEG by their first bytes. They throw Error:
//   kInvalidArgument     for other bytes (and say what they look like), options out of range and too many pixels
//   kDataLoss            for a file that is damaged or cut short
//   kFailedPrecondition  when Muster was built without libjpeg-turbo and libpng
// They print nothing, and may be called from any thread.

// Reads no further than the header.
ImageSize image_size(std::string_view bytes);

// uint8 [height, width, channels], row by row from the top. A picture's orientation (EXIF), colour profile and further
// frames are passed over.
//
// JPEG: libjpeg-turbo's exact transform (ISLOW) and smooth upsampling of colours, so equal to TensorFlow's
// INTEGER_ACCURATE; TensorFlow's default is `fast_transform`. CMYK becomes RGB by the same formula as there. Baseline
// and progressive; of the latter at most 100 scans. Small damage inside is passed over as libjpeg does; an end that is
// missing is an error.
//
// PNG: every kind; 16 bits are cut to the upper 8, a palette is looked up, grey is 0.299 R + 0.587 G + 0.114 B, all as
// tf.io.decode_png does. The check sums of the pixels must hold.
at::Tensor decode_image(std::string_view bytes, const DecodeOptions& options = {});

// The window of a JPEG, equal to the same window of decode_image(), without most of the work for what lies outside.
// With `scale_to` the window is given in pixels of the full size, both its sides keep at least `scale_to`, and its
// edges move outwards to the next pixel of the smaller picture. What comes after the window in the file is not looked
// at.
at::Tensor decode_and_crop_jpeg(std::string_view bytes, int64_t top, int64_t left, int64_t height, int64_t width,
                                const DecodeOptions& options = {});

}  // namespace muster
