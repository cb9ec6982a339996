#include "muster/data/images/image_functions.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "muster/base/status.h"
#include "muster/base/test_errors.h"

namespace muster::image_functions_test {
using testing_support::caught;

template <class Number>
at::Tensor picture_of(int64_t height, int64_t width, int64_t channels, const std::vector<Number>& values) {
  const at::Tensor picture =
      at::empty({height, width, channels}, std::is_same_v<Number, uint8_t> ? at::kByte : at::kFloat);
  std::copy(values.begin(), values.end(), static_cast<Number*>(picture.data_ptr()));
  return picture;
}

at::Tensor noise(int64_t height, int64_t width, int64_t channels, at::ScalarType type) {
  uint32_t state = 3;
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < height * width * channels; ++i) {
    state = state * 1664525 + 1013904223;
    bytes.push_back(static_cast<uint8_t>(state >> 24));
  }
  if (type == at::kByte) return picture_of(height, width, channels, bytes);
  return picture_of(height, width, channels, std::vector<float>(bytes.begin(), bytes.end()));
}

double at_pixel(const at::Tensor& picture, int64_t y, int64_t x, int64_t c) {
  const int64_t i = (y * picture.size(1) + x) * picture.size(2) + c;
  return picture.scalar_type() == at::kByte ? static_cast<const uint8_t*>(picture.const_data_ptr())[i]
                                            : static_cast<const float*>(picture.const_data_ptr())[i];
}

std::vector<double> values_of(const at::Tensor& picture) {
  std::vector<double> values;
  for (int64_t y = 0; y < picture.size(0); ++y) {
    for (int64_t x = 0; x < picture.size(1); ++x) {
      for (int64_t c = 0; c < picture.size(2); ++c) values.push_back(at_pixel(picture, y, x, c));
    }
  }
  return values;
}

void expect_each(const at::Tensor& picture, double tolerance,
                 const std::function<double(int64_t, int64_t, int64_t)>& wanted) {
  for (int64_t y = 0; y < picture.size(0); ++y) {
    for (int64_t x = 0; x < picture.size(1); ++x) {
      for (int64_t c = 0; c < picture.size(2); ++c) {
        ASSERT_NEAR(at_pixel(picture, y, x, c), wanted(y, x, c), tolerance) << y << ", " << x << ", " << c;
      }
    }
  }
}

// A pixel between pixels, the edge going on outside.
double between(const at::Tensor& picture, double y, double x, int64_t c) {
  const auto pixel = [&](double row, double column) {
    const auto inside = [](double at, int64_t side) {
      return static_cast<int64_t>(std::clamp(at, 0., static_cast<double>(side - 1)));
    };
    return at_pixel(picture, inside(row, picture.size(0)), inside(column, picture.size(1)), c);
  };
  const double top = std::floor(y), left = std::floor(x), down = y - top, right = x - left;
  return pixel(top, left) * (1 - down) * (1 - right) + pixel(top, left + 1) * (1 - down) * right +
         pixel(top + 1, left) * down * (1 - right) + pixel(top + 1, left + 1) * down * right;
}

TEST(ResizeImage, BlendsTheFourNeighboursOfEachCentre) {
  struct Size {
    int64_t from_height, from_width, height, width;
  };
  for (const Size& s :
       std::vector<Size>{{7, 9, 5, 4}, {7, 9, 15, 20}, {1, 1, 3, 4}, {9, 7, 1, 1}, {6, 8, 6, 8}, {5, 3, 2, 30}}) {
    for (const int64_t channels : {1, 2, 3, 4}) {
      for (const auto type : {at::kByte, at::kFloat}) {
        const at::Tensor from = noise(s.from_height, s.from_width, channels, type);
        const auto wanted = [&](int64_t y, int64_t x, int64_t c) {
          const auto back = [](int64_t i, int64_t from_side, int64_t side) {
            return (static_cast<double>(i) + 0.5) * static_cast<double>(from_side) / static_cast<double>(side) - 0.5;
          };
          return between(from, back(y, s.from_height, s.height), back(x, s.from_width, s.width), c);
        };

        const at::Tensor floats = resize_image(from, s.height, s.width);
        const at::Tensor bytes = resize_image(from, s.height, s.width, {.to_uint8 = true});

        ASSERT_EQ(floats.sizes(), (std::vector<int64_t>{s.height, s.width, channels}));
        ASSERT_EQ(floats.scalar_type(), at::kFloat);
        ASSERT_EQ(bytes.scalar_type(), at::kByte);
        expect_each(floats, 1e-3, wanted);
        expect_each(bytes, 0.501, wanted);
      }
    }
  }
}

TEST(ResizeImage, GivesTheNumbersOfTensorFlow) {
  const at::Tensor row = picture_of<float>(1, 4, 1, {0, 10, 20, 30});

  EXPECT_EQ(values_of(resize_image(row, 1, 2)), (std::vector<double>{5, 25}));
  EXPECT_EQ(values_of(resize_image(row, 1, 8)), (std::vector<double>{0, 2.5, 7.5, 12.5, 17.5, 22.5, 27.5, 30}));
  EXPECT_EQ(values_of(resize_image(row, 1, 1)), (std::vector<double>{15}));
  EXPECT_EQ(values_of(resize_image(row, 1, 2, {.method = ResizeMethod::kNearest})), (std::vector<double>{10, 30}));
}

TEST(ResizeImage, CountsEveryPixelWithAntialias) {
  const at::Tensor from = noise(23, 31, 3, at::kByte);
  const int64_t height = 6, width = 9;
  // The weight of a pixel falls as a straight line to 0 at the distance of one pixel of the smaller picture.
  const auto weights = [](int64_t i, int64_t from_side, int64_t side) {
    const double scale = std::max(1., static_cast<double>(from_side) / static_cast<double>(side));
    const double center = (static_cast<double>(i) + 0.5) * static_cast<double>(from_side) / static_cast<double>(side);
    std::vector<double> result;
    double sum = 0;
    for (int64_t pixel = 0; pixel < from_side; ++pixel) {
      result.push_back(std::max(0., 1 - std::abs(static_cast<double>(pixel) + 0.5 - center) / scale));
      sum += result.back();
    }
    for (double& weight : result) weight /= sum;
    return result;
  };

  for (const auto& [high, wide] : std::vector<std::pair<int64_t, int64_t>>{{height, width}, {40, 50}, {6, 50}}) {
    const at::Tensor result = resize_image(from, high, wide, {.antialias = true});

    expect_each(result, 1e-2, [&](int64_t y, int64_t x, int64_t c) {
      const auto rows = weights(y, 23, high), columns = weights(x, 31, wide);
      double sum = 0;
      for (int64_t i = 0; i < 23; ++i) {
        for (int64_t j = 0; j < 31; ++j) {
          sum += rows[static_cast<size_t>(i)] * columns[static_cast<size_t>(j)] * at_pixel(from, i, j, c);
        }
      }
      return sum;
    });
  }
}

TEST(ResizeImage, TakesTheNearestAndKeepsTheType) {
  const at::Tensor from = noise(7, 10, 3, at::kByte);

  const at::Tensor result = resize_image(from, 4, 23, {.method = ResizeMethod::kNearest});

  EXPECT_EQ(result.scalar_type(), at::kByte);
  expect_each(result, 0, [&](int64_t y, int64_t x, int64_t c) {
    return at_pixel(from, static_cast<int64_t>((y + 0.5) * 7 / 4), static_cast<int64_t>((x + 0.5) * 10 / 23), c);
  });
}

TEST(ResizeImage, LimitsBytesAndTakesWhatIsNoNumberAsNone) {
  const at::Tensor from = picture_of<float>(1, 4, 1, {-5, 300, 12.6f, std::numeric_limits<float>::quiet_NaN()});

  EXPECT_EQ(values_of(resize_image(from, 1, 4, {.to_uint8 = true})), (std::vector<double>{0, 255, 13, 0}));
}

TEST(CropImage, CopiesTheWindow) {
  for (const auto type : {at::kByte, at::kFloat}) {
    const at::Tensor from = noise(6, 8, 3, type);

    const at::Tensor result = crop_image(from, 1, 2, 4, 5);

    ASSERT_EQ(result.sizes(), (std::vector<int64_t>{4, 5, 3}));
    expect_each(result, 0, [&](int64_t y, int64_t x, int64_t c) { return at_pixel(from, y + 1, x + 2, c); });
  }
  EXPECT_EQ(caught([] { crop_image(noise(6, 8, 3, at::kByte), 3, 0, 4, 5); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([] { crop_image(noise(6, 8, 3, at::kByte), 0, 0, INT64_MAX, 1); }).code(),
            StatusCode::kInvalidArgument);
}

TEST(FlipImage, TurnsColumnsOrRowsAround) {
  for (const auto type : {at::kByte, at::kFloat}) {
    const at::Tensor from = noise(3, 5, 3, type);

    expect_each(flip_image_left_right(from), 0,
                [&](int64_t y, int64_t x, int64_t c) { return at_pixel(from, y, 4 - x, c); });
    expect_each(flip_image_up_down(from), 0,
                [&](int64_t y, int64_t x, int64_t c) { return at_pixel(from, 2 - y, x, c); });
  }
}

TEST(FlipImage, TakesAPictureWhosePixelsDoNotLieInOrder) {
  const at::Tensor planes = noise(3, 4, 5, at::kByte);
  const at::Tensor from = planes.permute({1, 2, 0});  // [4, 5, 3]

  const at::Tensor result = flip_image_up_down(from);

  expect_each(result, 0, [&](int64_t y, int64_t x, int64_t c) { return at_pixel(planes, c, 3 - y, x); });
}

TEST(RotateImage, TurnsCounterClockwiseByRightAngles) {
  for (const auto type : {at::kByte, at::kFloat}) {
    const at::Tensor from = noise(5, 5, 3, type);

    expect_each(rotate_image(from, 0), 0, [&](int64_t y, int64_t x, int64_t c) { return at_pixel(from, y, x, c); });
    expect_each(rotate_image(from, 90), 1e-3,
                [&](int64_t y, int64_t x, int64_t c) { return at_pixel(from, x, 4 - y, c); });
    expect_each(rotate_image(from, 180), 1e-3,
                [&](int64_t y, int64_t x, int64_t c) { return at_pixel(from, 4 - y, 4 - x, c); });
  }
}

TEST(RotateImage, FillsWithNothingFromOutside) {
  const at::Tensor white = picture_of(9, 9, 1, std::vector<uint8_t>(81, 255));

  const at::Tensor result = rotate_image(white, 45);

  EXPECT_EQ(at_pixel(result, 4, 4, 0), 255);
  EXPECT_EQ(at_pixel(result, 0, 4, 0), 255);
  EXPECT_EQ(at_pixel(result, 0, 0, 0), 0);
  EXPECT_EQ(at_pixel(result, 8, 8, 0), 0);
}

TEST(AdjustBrightness, AddsAPartOfTheRange) {
  const at::Tensor bytes = picture_of<uint8_t>(1, 3, 1, {0, 100, 250});
  const at::Tensor floats = picture_of<float>(1, 2, 1, {0.5f, 0.9f});

  EXPECT_EQ(values_of(adjust_brightness(bytes, 0.2)), (std::vector<double>{51, 151, 255}));
  EXPECT_EQ(values_of(adjust_brightness(bytes, -0.2)), (std::vector<double>{0, 49, 199}));
  EXPECT_FLOAT_EQ(static_cast<float>(values_of(adjust_brightness(floats, 0.2))[1]), 1.1f);
}

TEST(AdjustContrast, StretchesEachChannelAboutItsMean) {
  const at::Tensor bytes = picture_of<uint8_t>(1, 2, 2, {100, 10, 200, 30});
  const at::Tensor floats = picture_of<float>(1, 2, 1, {1, 3});

  EXPECT_EQ(values_of(adjust_contrast(bytes, 0.5)), (std::vector<double>{125, 15, 175, 25}));
  EXPECT_EQ(values_of(adjust_contrast(bytes, 4)), (std::vector<double>{0, 0, 255, 60}));
  EXPECT_EQ(values_of(adjust_contrast(floats, 2)), (std::vector<double>{0, 4}));
}

TEST(AdjustSaturation, MultipliesTheSaturationOfHueSaturationValue) {
  const at::Tensor bytes = picture_of<uint8_t>(1, 3, 3, {200, 100, 150, 80, 80, 80, 0, 0, 0});

  EXPECT_EQ(values_of(adjust_saturation(bytes, 1)), (std::vector<double>{200, 100, 150, 80, 80, 80, 0, 0, 0}));
  EXPECT_EQ(values_of(adjust_saturation(bytes, 0)), (std::vector<double>{200, 200, 200, 80, 80, 80, 0, 0, 0}));
  EXPECT_EQ(values_of(adjust_saturation(bytes, 1.5)), (std::vector<double>{200, 50, 125, 80, 80, 80, 0, 0, 0}));
  EXPECT_EQ(values_of(adjust_saturation(bytes, 10)), (std::vector<double>{200, 0, 100, 80, 80, 80, 0, 0, 0}));
  EXPECT_EQ(caught([&] { adjust_saturation(noise(2, 2, 4, at::kByte), 1); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([&] { adjust_saturation(bytes, -1); }).code(), StatusCode::kInvalidArgument);
}

TEST(NormalizeImage, TakesMeanAndDeviationOfEachChannel) {
  const at::Tensor bytes = picture_of<uint8_t>(1, 2, 2, {10, 20, 30, 40});

  EXPECT_EQ(values_of(normalize_image(bytes, {10, 20}, {2, 4})), (std::vector<double>{0, 0, 10, 5}));
  EXPECT_EQ(values_of(normalize_image(bytes, {10}, {2})), (std::vector<double>{0, 5, 10, 15}));
  EXPECT_EQ(caught([&] { normalize_image(bytes, {1, 2, 3}, {1, 2, 3}); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([&] { normalize_image(bytes, {1}, {0}); }).code(), StatusCode::kInvalidArgument);
}

TEST(ImageToFloat, MakesBytesPartsOfOne) {
  const at::Tensor result = image_to_float(picture_of<uint8_t>(1, 3, 1, {0, 51, 255}));

  EXPECT_EQ(result.scalar_type(), at::kFloat);
  EXPECT_NEAR(at_pixel(result, 0, 1, 0), 0.2, 1e-7);
  EXPECT_EQ(at_pixel(result, 0, 2, 0), 1);
}

TEST(ImageFunctions, RefuseWhatIsNoPicture) {
  const std::vector<at::Tensor> others = {at::Tensor(), at::empty({3, 3}, at::kByte), at::empty({0, 3, 3}, at::kByte),
                                          at::empty({3, 3, 0}, at::kFloat), at::empty({3, 3, 3}, at::kDouble)};
  for (const at::Tensor& other : others) {
    EXPECT_EQ(caught([&] { resize_image(other, 2, 2); }).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(caught([&] { flip_image_left_right(other); }).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(caught([&] { adjust_contrast(other, 2); }).code(), StatusCode::kInvalidArgument);
  }
  const at::Tensor picture = noise(2, 2, 3, at::kByte);
  for (const int64_t side : {int64_t{0}, int64_t{-1}, int64_t{65536}, INT64_MAX}) {
    EXPECT_EQ(caught([&] { resize_image(picture, side, 1); }).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(caught([&] { resize_image(picture, 1, side); }).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(caught([&] { resize_image(picture, 65535, 65535); }).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(caught([&] { adjust_brightness(picture, NAN); }).code(), StatusCode::kInvalidArgument);
}

}  // namespace muster::image_functions_test
