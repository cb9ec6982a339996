#include "muster/data/images/image_functions.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

constexpr int64_t kLongestPictureSide = 65535;
constexpr int64_t kMostPicturePixels = 178'956'970;

// A picture that was checked, its elements one after the other.
struct CheckedPicture {
  CheckedPicture(const at::Tensor& image, std::string_view function) {
    check_image(image, function);
    PlainTensors plain;
    tensor = image.contiguous();
    height = tensor.size(0);
    width = tensor.size(1);
    channels = tensor.size(2);
  }

  bool bytes() const { return tensor.scalar_type() == at::kByte; }
  int64_t pixels() const { return height * width; }
  int64_t numbers() const { return pixels() * channels; }
  template <class Number>
  const Number* data() const {
    return static_cast<const Number*>(tensor.const_data_ptr());
  }

  at::Tensor tensor;
  int64_t height, width, channels;
};

at::Tensor like_picture(const CheckedPicture& picture, int64_t height, int64_t width, at::ScalarType type) {
  PlainTensors plain;
  return at::empty({height, width, picture.channels}, type);
}

at::Tensor like_picture(const CheckedPicture& picture) {
  return like_picture(picture, picture.height, picture.width, picture.tensor.scalar_type());
}

template <class Number>
Number* pixels_of(const at::Tensor& tensor) {
  return static_cast<Number*>(tensor.data_ptr());
}

// Calls `work` with a number of the picture's element type.
template <class Work>
void by_pixel_type(const CheckedPicture& picture, const Work& work) {
  if (picture.bytes()) {
    work(uint8_t{});
  } else {
    work(float{});
  }
}

// Calls `work` with the number of channels, as a constant where it is a usual one: loops over it then cost nothing.
template <class Work>
void by_channels(int64_t channels, Work work) {
  switch (channels) {
    case 1: return work(std::integral_constant<int64_t, 1>{});
    case 3: return work(std::integral_constant<int64_t, 3>{});
    case 4: return work(std::integral_constant<int64_t, 4>{});
    default: return work(channels);
  }
}

// kInRange: it is a mean of bytes, so that nothing needs to be limited.
template <class Number, bool kInRange = false>
Number pixel_of(float value) {
  if constexpr (!std::is_same_v<Number, uint8_t>) {
    return value;
  } else if constexpr (kInRange) {
    return static_cast<uint8_t>(value + 0.5f);
  } else {
    // This order takes what is no number to 0.
    return static_cast<uint8_t>(std::min(std::max(0.f, value), 255.f) + 0.5f);
  }
}

void check_picture_side(std::string_view function, std::string_view side, int64_t size) {
  if (size < 1 || size > kLongestPictureSide) {
    throw invalid_argument(function, ": ", side, " is ", size, "; expected 1 to ", kLongestPictureSide);
  }
}

void check_picture_sides(std::string_view function, int64_t height, int64_t width) {
  check_picture_side(function, "height", height);
  check_picture_side(function, "width", width);
  if (height * width > kMostPicturePixels) {
    throw invalid_argument(function, ": ", height, " x ", width, " is more than ", kMostPicturePixels, " pixels");
  }
}

// The two pixels along one side that make a pixel of the result, and how much of the upper one.
struct PixelBlend {
  int64_t lower, upper;
  float part;
};

// In floats and in this order, as TensorFlow: other roundings choose other pixels now and then.
std::vector<PixelBlend> pixel_blends(int64_t from, int64_t to) {
  std::vector<PixelBlend> result(static_cast<size_t>(to));
  const float scale = static_cast<float>(from) / static_cast<float>(to);
  for (int64_t i = 0; i < to; ++i) {
    const float at = (static_cast<float>(i) + 0.5f) * scale - 0.5f;
    const float floor = std::floor(at);
    result[static_cast<size_t>(i)] = {.lower = std::max<int64_t>(static_cast<int64_t>(floor), 0),
                                      .upper = std::min<int64_t>(static_cast<int64_t>(std::ceil(at)), from - 1),
                                      .part = at - floor};
  }
  return result;
}

using FourFloats = float __attribute__((vector_size(16)));

FourFloats four_at(const float* from) {
  FourFloats four;
  std::memcpy(&four, from, sizeof(four));
  return four;
}

// Loops of a fixed length over memory that does not overlap are what compilers vectorize at -O2, hence the blocks.
constexpr int64_t kFloatBlock = 16;

template <class Number>
void widen(const Number* __restrict from, int64_t count, float factor, float* __restrict to) {
  int64_t i = 0;
  for (; i + kFloatBlock <= count; i += kFloatBlock) {
    for (int64_t j = 0; j < kFloatBlock; ++j) to[i + j] = static_cast<float>(from[i + j]) * factor;
  }
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]) * factor;
}

// REQUIRES: 4 floats may be read from every pixel of `row` on, and written from every one of `out` on.
void blend_columns(const float* row, const std::vector<PixelBlend>& columns, int64_t channels, float* out) {
  // A copy of the pointer in each of these: what a lambda refers to is loaded again after every write of bytes.
  by_channels(channels, [row, out, &columns](auto count) mutable {
    if constexpr (std::is_same_v<decltype(count), int64_t> || decltype(count){} == 1) {
      for (const PixelBlend& column : columns) {
        const float *lower = row + column.lower * count, *upper = row + column.upper * count;
        for (int64_t c = 0; c < count; ++c) *out++ = lower[c] + (upper[c] - lower[c]) * column.part;
      }
    } else {
      // What a pixel of three writes too much, the next one writes over.
      for (const PixelBlend& column : columns) {
        const FourFloats lower = four_at(row + column.lower * count), upper = four_at(row + column.upper * count);
        const FourFloats blended = lower + (upper - lower) * column.part;
        std::memcpy(out, &blended, sizeof(blended));
        out += count;
      }
    }
  });
}

template <bool kInRange, class Result>
void blend_rows(const float* __restrict one, const float* __restrict other, float part, int64_t count,
                Result* __restrict to) {
  int64_t i = 0;
  for (; i + kFloatBlock <= count; i += kFloatBlock) {
    for (int64_t j = 0; j < kFloatBlock; ++j) {
      to[i + j] = pixel_of<Result, kInRange>(one[i + j] + (other[i + j] - one[i + j]) * part);
    }
  }
  for (; i < count; ++i) to[i] = pixel_of<Result, kInRange>(one[i] + (other[i] - one[i]) * part);
}

// Columns first: a row of the source is squeezed once and serves the rows of the result on both of its sides.
template <class Number, class Result>
void resize_bilinear(const Number* from, const CheckedPicture& picture, int64_t height, int64_t width, Result* to) {
  const std::vector<PixelBlend> rows = pixel_blends(picture.height, height),
                                columns = pixel_blends(picture.width, width);
  const int64_t count = width * picture.channels, stride = picture.width * picture.channels;
  std::vector<float> memory(static_cast<size_t>(stride + count * 2 + 3 * 4));
  float *wide = memory.data(), *low = wide + stride + 4, *high = low + count + 4;
  int64_t in_low = -1, in_high = -1;
  const auto squeeze = [&](int64_t row, float* into) {
    widen(from + row * stride, stride, 1, wide);
    blend_columns(wide, columns, picture.channels, into);
  };
  for (const PixelBlend& row : rows) {
    if (row.lower == in_high) {
      std::swap(low, high);
      std::swap(in_low, in_high);
    }
    if (std::exchange(in_low, row.lower) != row.lower) squeeze(row.lower, low);
    const bool both = row.upper != row.lower;
    if (both && std::exchange(in_high, row.upper) != row.upper) squeeze(row.upper, high);
    blend_rows<std::is_same_v<Number, uint8_t>>(low, both ? high : low, row.part, count, to);
    to += count;
  }
}

// The pixels along one side that make a pixel of the result: `count` of `weights` from `at` on for those from `first`
// on.
struct PixelSpans {
  struct Span {
    int64_t first, count;
    size_t at;
  };
  std::vector<Span> spans;
  std::vector<float> weights;
};

// TensorFlow's ScaleAndTranslate with the triangle that its antialias uses.
PixelSpans antialiased_spans(int64_t from, int64_t to) {
  PixelSpans result;
  result.spans.reserve(static_cast<size_t>(to));
  const float inverse = 1.f / (static_cast<float>(to) / static_cast<float>(from));
  const float radius = std::max(inverse, 1.f);
  for (int64_t i = 0; i < to; ++i) {
    const float center = (static_cast<float>(i) + 0.5f) * inverse;
    const auto first = std::max<int64_t>(static_cast<int64_t>(std::ceil(center - radius - 0.5f)), 0);
    const auto last = std::min<int64_t>(static_cast<int64_t>(std::floor(center + radius - 0.5f)), from - 1);
    const size_t at = result.weights.size();
    float sum = 0;
    for (int64_t pixel = first; pixel <= last; ++pixel) {
      const float distance = std::abs((static_cast<float>(pixel) + 0.5f - center) / radius);
      sum += result.weights.emplace_back(std::max(0.f, 1.f - distance));
    }
    for (size_t weight = at; weight < result.weights.size(); ++weight) result.weights[weight] /= sum;
    result.spans.push_back({.first = first, .count = last - first + 1, .at = at});
  }
  return result;
}

void add_weighted(const float* __restrict row, float weight, int64_t count, float* __restrict sum) {
  int64_t i = 0;
  for (; i + kFloatBlock <= count; i += kFloatBlock) {
    for (int64_t j = 0; j < kFloatBlock; ++j) sum[i + j] += row[i + j] * weight;
  }
  for (; i < count; ++i) sum[i] += row[i] * weight;
}

template <class Number, class Result>
void resize_antialiased(const Number* from, const CheckedPicture& picture, int64_t height, int64_t width, Result* to) {
  const PixelSpans rows = antialiased_spans(picture.height, height), columns = antialiased_spans(picture.width, width);
  const int64_t channels = picture.channels, count = width * channels;
  std::vector<float> squeezed(static_cast<size_t>(picture.height * count));
  by_channels(channels, [&, from](auto each) {
    float* out = squeezed.data();
    for (int64_t row = 0; row < picture.height; ++row) {
      for (const PixelSpans::Span& span : columns.spans) {
        const Number* pixel = from + (row * picture.width + span.first) * each;
        for (int64_t i = 0; i < span.count; ++i, pixel += each) {
          const float weight = columns.weights[span.at + static_cast<size_t>(i)];
          for (int64_t c = 0; c < each; ++c) out[c] += static_cast<float>(pixel[c]) * weight;
        }
        out += each;
      }
    }
  });
  std::vector<float> sum(static_cast<size_t>(count));
  for (const PixelSpans::Span& span : rows.spans) {
    std::fill(sum.begin(), sum.end(), 0.f);
    for (int64_t i = 0; i < span.count; ++i) {
      const float weight = rows.weights[span.at + static_cast<size_t>(i)];
      const float* row = squeezed.data() + (span.first + i) * count;
      add_weighted(row, weight, count, sum.data());
    }
    for (int64_t j = 0; j < count; ++j) to[j] = pixel_of<Result>(sum[static_cast<size_t>(j)]);
    to += count;
  }
}

template <class Number, class Result>
void resize_nearest(const Number* from, const CheckedPicture& picture, int64_t height, int64_t width, Result* to) {
  const auto nearest = [](int64_t i, int64_t from_side, int64_t to_side) {
    const float scale = static_cast<float>(from_side) / static_cast<float>(to_side);
    return std::min(static_cast<int64_t>((static_cast<float>(i) + 0.5f) * scale), from_side - 1);
  };
  const int64_t channels = picture.channels;
  std::vector<int64_t> columns(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) columns[static_cast<size_t>(i)] = nearest(i, picture.width, width) * channels;
  by_channels(channels, [&, from, to](auto each) mutable {
    for (int64_t i = 0; i < height; ++i) {
      const Number* row = from + nearest(i, picture.height, height) * picture.width * each;
      for (const int64_t column : columns) {
        for (int64_t c = 0; c < each; ++c) {
          if constexpr (std::is_same_v<Number, Result>) {
            *to++ = row[column + c];
          } else {
            *to++ = pixel_of<Result>(static_cast<float>(row[column + c]));
          }
        }
      }
    }
  });
}

template <class Number, class Result>
void resize_into(const CheckedPicture& picture, int64_t height, int64_t width, const ResizeOptions& options,
                 Result* to) {
  const auto* from = picture.data<Number>();
  if (options.method == ResizeMethod::kNearest) return resize_nearest(from, picture, height, width, to);
  if (options.antialias) return resize_antialiased(from, picture, height, width, to);
  resize_bilinear(from, picture, height, width, to);
}

template <class Number>
void rotate_into(const CheckedPicture& picture, double degrees, Number* to) {
  const double radians = degrees * (std::numbers::pi / 180);
  const auto cosine = static_cast<float>(std::cos(radians)), sine = static_cast<float>(std::sin(radians));
  const float middle_x = static_cast<float>(picture.width - 1) / 2,
              middle_y = static_cast<float>(picture.height - 1) / 2;
  const auto* from = picture.data<Number>();
  const auto floor_of = [](float value) {  // the function of the library is slow where the processor has none
    const auto whole = static_cast<int64_t>(value);
    return whole - (value < static_cast<float>(whole) ? 1 : 0);
  };
  by_channels(picture.channels, [=, &picture](auto channels) mutable {
    const int64_t stride = picture.width * channels;
    for (int64_t row = 0; row < picture.height; ++row) {
      for (int64_t column = 0; column < picture.width; ++column, to += channels) {
        const float dx = static_cast<float>(column) - middle_x, dy = static_cast<float>(row) - middle_y;
        const float x = cosine * dx - sine * dy + middle_x, y = sine * dx + cosine * dy + middle_y;
        const int64_t left = floor_of(x), top = floor_of(y);
        const float part_x = x - static_cast<float>(left), part_y = y - static_cast<float>(top);
        const bool in_left = left >= 0 && left < picture.width, in_right = left >= -1 && left + 1 < picture.width;
        const bool in_top = top >= 0 && top < picture.height, in_bottom = top >= -1 && top + 1 < picture.height;
        const int64_t corner = top * stride + left * channels;
        const auto blend = [part_x, part_y](float a, float b, float d, float e) {
          const float upper = a + (b - a) * part_x, lower = d + (e - d) * part_x;
          return pixel_of<Number, true>(upper + (lower - upper) * part_y);
        };
        const auto pixel = [from, corner](int64_t at) { return static_cast<float>(from[corner + at]); };
        if (in_left && in_right && in_top && in_bottom) {
          for (int64_t c = 0; c < channels; ++c) {
            to[c] = blend(pixel(c), pixel(c + channels), pixel(c + stride), pixel(c + stride + channels));
          }
        } else {
          for (int64_t c = 0; c < channels; ++c) {
            to[c] = blend(in_top && in_left ? pixel(c) : 0, in_top && in_right ? pixel(c + channels) : 0,
                          in_bottom && in_left ? pixel(c + stride) : 0,
                          in_bottom && in_right ? pixel(c + stride + channels) : 0);
          }
        }
      }
    }
  });
}

// x * scale + shift, both per channel. A byte has 256 values only, so what becomes of it is looked up.
template <class Number, class Result>
void scale_and_shift(const CheckedPicture& picture, const std::vector<float>& scale, const std::vector<float>& shift,
                     Result* to) {
  const auto* from = picture.data<Number>();
  const auto result = [&](int64_t c, float value) {
    return pixel_of<Result>(value * scale[static_cast<size_t>(c)] + shift[static_cast<size_t>(c)]);
  };
  by_channels(picture.channels, [&, from, to](auto channels) mutable {
    if constexpr (std::is_same_v<Number, uint8_t>) {
      std::vector<Result> table(static_cast<size_t>(channels) * 256);
      for (int64_t i = 0; i < channels * 256; ++i) {
        table[static_cast<size_t>(i)] = result(i / 256, static_cast<float>(i % 256));
      }
      const Result* looked_up = table.data();
      for (int64_t left = picture.pixels(); left > 0; --left, from += channels, to += channels) {
        for (int64_t c = 0; c < channels; ++c) to[c] = looked_up[c * 256 + from[c]];
      }
    } else {
      for (int64_t left = picture.pixels(); left > 0; --left, from += channels, to += channels) {
        for (int64_t c = 0; c < channels; ++c) to[c] = result(c, from[c]);
      }
    }
  });
}

void check_image_number(std::string_view function, std::string_view what, double value) {
  if (!std::isfinite(value)) throw invalid_argument(function, ": ", what, " is ", value, "; expected a finite number");
}

}  // namespace

void check_image(const at::Tensor& image, std::string_view function) {
  if (!image.defined())
    throw invalid_argument(function, ": no picture; expected a tensor of [height, width, channels]");
  const auto type = image.scalar_type();
  if (image.dim() != 3 || image.numel() == 0 || !image.device().is_cpu() || (type != at::kByte && type != at::kFloat)) {
    std::string sizes;
    for (const int64_t side : image.sizes()) str_append(sizes, sizes.empty() ? "" : ", ", side);
    throw invalid_argument(function, ": expected uint8 or float32 [height, width, channels] on the CPU, got ",
                           c10::toString(type), " [", sizes, "] on ", image.device().str());
  }
}

at::Tensor resize_image(const at::Tensor& image, int64_t height, int64_t width, const ResizeOptions& options) {
  check_picture_sides("resize_image", height, width);
  const CheckedPicture picture(image, "resize_image");
  const bool keeps_bytes = picture.bytes() && options.method == ResizeMethod::kNearest;
  const bool to_bytes = options.to_uint8 || keeps_bytes;
  at::Tensor result = like_picture(picture, height, width, to_bytes ? at::kByte : at::kFloat);
  by_pixel_type(picture, [&]<class Number>(Number) {
    if (to_bytes) {
      resize_into<Number>(picture, height, width, options, pixels_of<uint8_t>(result));
    } else {
      resize_into<Number>(picture, height, width, options, pixels_of<float>(result));
    }
  });
  return result;
}

at::Tensor crop_image(const at::Tensor& image, int64_t top, int64_t left, int64_t height, int64_t width) {
  const CheckedPicture picture(image, "crop_image");
  if (top < 0 || left < 0 || height < 1 || width < 1 || height > picture.height || width > picture.width ||
      top > picture.height - height || left > picture.width - width) {
    throw invalid_argument("crop_image: the window of ", height, " x ", width, " (height x width) at top ", top,
                           ", left ", left, " is not inside the picture of ", picture.height, " x ", picture.width);
  }
  at::Tensor result = like_picture(picture, height, width, picture.tensor.scalar_type());
  const auto pixel = static_cast<size_t>(picture.channels) * picture.tensor.element_size();
  const size_t from_stride = static_cast<size_t>(picture.width) * pixel, to_stride = static_cast<size_t>(width) * pixel;
  const uint8_t* from =
      picture.data<uint8_t>() + static_cast<size_t>(top) * from_stride + static_cast<size_t>(left) * pixel;
  auto* to = pixels_of<uint8_t>(result);
  for (int64_t row = 0; row < height; ++row, from += from_stride, to += to_stride) std::memcpy(to, from, to_stride);
  return result;
}

at::Tensor flip_image_left_right(const at::Tensor& image) {
  const CheckedPicture picture(image, "flip_image_left_right");
  at::Tensor result = like_picture(picture);
  by_pixel_type(picture, [&]<class Number>(Number) {
    const auto* from = picture.data<Number>();
    auto* to = pixels_of<Number>(result);
    by_channels(picture.channels, [&picture, from, to](auto channels) mutable {
      const int64_t stride = picture.width * channels;
      for (int64_t row = 0; row < picture.height; ++row, from += stride) {
        const Number* pixel = from + stride;
        for (int64_t column = 0; column < picture.width; ++column, to += channels) {
          pixel -= channels;
          for (int64_t c = 0; c < channels; ++c) to[c] = pixel[c];
        }
      }
    });
  });
  return result;
}

at::Tensor flip_image_up_down(const at::Tensor& image) {
  const CheckedPicture picture(image, "flip_image_up_down");
  at::Tensor result = like_picture(picture);
  const size_t stride = static_cast<size_t>(picture.width * picture.channels) * picture.tensor.element_size();
  auto* to = pixels_of<uint8_t>(result);
  for (int64_t row = picture.height - 1; row >= 0; --row, to += stride) {
    std::memcpy(to, picture.data<uint8_t>() + static_cast<size_t>(row) * stride, stride);
  }
  return result;
}

at::Tensor rotate_image(const at::Tensor& image, double degrees) {
  check_image_number("rotate_image", "degrees", degrees);
  const CheckedPicture picture(image, "rotate_image");
  at::Tensor result = like_picture(picture);
  by_pixel_type(picture, [&]<class Number>(Number) { rotate_into(picture, degrees, pixels_of<Number>(result)); });
  return result;
}

at::Tensor adjust_brightness(const at::Tensor& image, double delta) {
  check_image_number("adjust_brightness", "delta", delta);
  const CheckedPicture picture(image, "adjust_brightness");
  at::Tensor result = like_picture(picture);
  const auto channels = static_cast<size_t>(picture.channels);
  const std::vector<float> scale(channels, 1.f);
  const std::vector<float> shift(channels, static_cast<float>(picture.bytes() ? delta * 255 : delta));
  by_pixel_type(picture, [&]<class Number>(Number) {
    scale_and_shift<Number>(picture, scale, shift, pixels_of<Number>(result));
  });
  return result;
}

at::Tensor adjust_contrast(const at::Tensor& image, double factor) {
  check_image_number("adjust_contrast", "factor", factor);
  const CheckedPicture picture(image, "adjust_contrast");
  at::Tensor result = like_picture(picture);
  const auto channels = static_cast<size_t>(picture.channels);
  by_pixel_type(picture, [&]<class Number>(Number) {
    // Whole numbers for bytes, so that the sum does not depend on its order; doubles for floats.
    using Sum = std::conditional_t<std::is_same_v<Number, uint8_t>, int64_t, double>;
    std::vector<Sum> sums(channels);
    const auto* from = picture.data<Number>();
    by_channels(picture.channels, [&](auto each) {
      for (int64_t i = 0; i < picture.pixels(); ++i, from += each) {
        for (int64_t c = 0; c < each; ++c) sums[static_cast<size_t>(c)] += static_cast<Sum>(from[c]);
      }
    });
    std::vector<float> shift(channels);
    for (size_t c = 0; c < channels; ++c) {
      shift[c] =
          static_cast<float>(static_cast<double>(sums[c]) / static_cast<double>(picture.pixels()) * (1 - factor));
    }
    scale_and_shift<Number>(picture, std::vector<float>(channels, static_cast<float>(factor)), shift,
                            pixels_of<Number>(result));
  });
  return result;
}

at::Tensor adjust_saturation(const at::Tensor& image, double factor) {
  check_image_number("adjust_saturation", "factor", factor);
  if (factor < 0) throw invalid_argument("adjust_saturation: factor is ", factor, "; expected 0 or more");
  const CheckedPicture picture(image, "adjust_saturation");
  if (picture.channels != 3) throw invalid_argument("adjust_saturation: expected 3 channels, got ", picture.channels);
  at::Tensor result = like_picture(picture);
  by_pixel_type(picture, [&]<class Number>(Number) {
    const auto* from = picture.data<Number>();
    auto* to = pixels_of<Number>(result);
    const auto wanted = static_cast<float>(factor);
    for (int64_t i = 0; i < picture.pixels(); ++i, from += 3, to += 3) {
      const auto r = static_cast<float>(from[0]), g = static_cast<float>(from[1]), b = static_cast<float>(from[2]);
      const float high = std::max(r, std::max(g, b)), low = std::min(r, std::min(g, b));
      // With the same hue and value, a saturation times k moves each channel's distance from the highest by k. At most
      // so far that the lowest is 0: there the saturation is 1.
      const float spread = high - low;
      const float k = low < 0 || !(spread > 0) ? 1 : spread * wanted > high ? high / spread : wanted;
      to[0] = pixel_of<Number>(high - (high - r) * k);
      to[1] = pixel_of<Number>(high - (high - g) * k);
      to[2] = pixel_of<Number>(high - (high - b) * k);
    }
  });
  return result;
}

at::Tensor normalize_image(const at::Tensor& image, const std::vector<double>& mean,
                           const std::vector<double>& deviation) {
  const CheckedPicture picture(image, "normalize_image");
  const auto channels = static_cast<size_t>(picture.channels);
  if (mean.size() != deviation.size() || (mean.size() != 1 && mean.size() != channels)) {
    throw invalid_argument("normalize_image: ", mean.size(), " means and ", deviation.size(),
                           " deviations; expected one each, or one per channel, of which the picture has ", channels);
  }
  std::vector<float> scale(channels), shift(channels);
  for (size_t c = 0; c < channels; ++c) {
    const size_t i = mean.size() == 1 ? 0 : c;
    check_image_number("normalize_image", "mean", mean[i]);
    if (!(deviation[i] > 0) || !std::isfinite(deviation[i])) {
      throw invalid_argument("normalize_image: deviation is ", deviation[i], "; expected a finite number above 0");
    }
    scale[c] = static_cast<float>(1 / deviation[i]);
    shift[c] = static_cast<float>(-mean[i] / deviation[i]);
  }
  at::Tensor result = like_picture(picture, picture.height, picture.width, at::kFloat);
  by_pixel_type(
      picture, [&]<class Number>(Number) { scale_and_shift<Number>(picture, scale, shift, pixels_of<float>(result)); });
  return result;
}

at::Tensor image_to_float(const at::Tensor& image) {
  const CheckedPicture picture(image, "image_to_float");
  if (!picture.bytes()) return image;
  at::Tensor result = like_picture(picture, picture.height, picture.width, at::kFloat);
  widen(picture.data<uint8_t>(), picture.numbers(), 1.f / 255, pixels_of<float>(result));
  return result;
}

}  // namespace muster
