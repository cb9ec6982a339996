#include "muster/data/images/image_decoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/data/images/image_steps.h"

#ifdef MUSTER_HAS_IMAGES
#include <jpeglib.h>
#include <png.h>
#endif

namespace muster::image_decoder_test {

using namespace std::string_literals;

Status status_of_decoding(const std::function<void()>& decode) {
  try {
    decode();
  } catch (const Error& error) {
    return error.status();
  }
  return {};
}

TEST(ImageDecoder, SaysWhatOtherBytesLookLike) {
  const std::vector<std::pair<std::string, std::string>> looks = {
      {"", "no bytes"},         {"GIF89a..", "a GIF"},    {"BM......", "a BMP"},   {"RIFF....WEBPVP8 ", "a WebP"},
      {"II*\0...."s, "a TIFF"}, {"\x1f\x8b\x08", "gzip"}, {"abcd", "61 62 63 64"}, {"....ftypavif", "AVIF"}};

  for (const auto& [bytes, look] : looks) {
    const Status status = status_of_decoding([&] { decode_image(bytes); });

    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << look;
    EXPECT_NE(status.message().find(look), std::string::npos) << status;
  }
}

TEST(ImageDecoder, RefusesOptionsOutOfRange) {
  const auto code = [](const DecodeOptions& options) {
    return status_of_decoding([&] { decode_image("\xff\xd8\xff", options); }).code();
  };

  EXPECT_EQ(code({.channels = 2}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.scale_to = -1}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.most_pixels = 0}), StatusCode::kInvalidArgument);
}

#ifndef MUSTER_HAS_IMAGES

TEST(ImageDecoder, NamesThePackagesThatItWasBuiltWithout) {
  for (const std::string& bytes : {"\x89PNG\r\n\x1a\n...."s, "\xff\xd8\xff...."s}) {
    const Status status = status_of_decoding([&] { decode_image(bytes); });

    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find("libjpeg-dev and libpng-dev"), std::string::npos) << status;
  }
}

#else

std::vector<uint8_t> pixels_of(const at::Tensor& picture) {
  const auto* data = static_cast<const uint8_t*>(picture.const_data_ptr());
  return {data, data + picture.numel()};
}

// Waves in every channel with some noise, so that neighbours, channels and corners all differ.
std::vector<uint8_t> waves(int height, int width, int channels) {
  std::vector<uint8_t> result;
  uint32_t noise = 7;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        noise = noise * 1664525 + 1013904223;
        result.push_back(static_cast<uint8_t>((x * (5 + c) + y * (3 + 2 * c) + static_cast<int>(noise >> 29)) & 0xff));
      }
    }
  }
  return result;
}

struct PngFile {
  int height, width, depth = 8, color = PNG_COLOR_TYPE_RGB;
  std::vector<uint8_t> rows;  // as they lie in the file
  bool interlaced = false;
  std::vector<png_color> palette{};
  std::vector<uint8_t> palette_alpha{};
  int transparent_grey = -1;
};

std::string png_of(const PngFile& file) {
  std::string bytes;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  const auto append = [](png_structp to, png_bytep data, size_t count) {
    static_cast<std::string*>(png_get_io_ptr(to))->append(reinterpret_cast<const char*>(data), count);
  };
  png_set_write_fn(png, &bytes, append, [](png_structp) {});
  png_set_IHDR(png, info, static_cast<unsigned>(file.width), static_cast<unsigned>(file.height), file.depth, file.color,
               file.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (!file.palette.empty()) png_set_PLTE(png, info, file.palette.data(), static_cast<int>(file.palette.size()));
  png_color_16 grey{};
  if (file.transparent_grey >= 0) grey.gray = static_cast<uint16_t>(file.transparent_grey);
  if (file.transparent_grey >= 0) png_set_tRNS(png, info, nullptr, 0, &grey);
  if (!file.palette_alpha.empty()) {
    png_set_tRNS(png, info, file.palette_alpha.data(), static_cast<int>(file.palette_alpha.size()), nullptr);
  }
  std::vector<uint8_t> rows = file.rows;
  std::vector<png_bytep> pointers;
  for (int row = 0; row < file.height; ++row) {
    pointers.push_back(rows.data() + static_cast<size_t>(row) * (rows.size() / static_cast<size_t>(file.height)));
  }
  png_set_rows(png, info, pointers.data());
  png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

struct JpegFile {
  int height, width;
  J_COLOR_SPACE color = JCS_RGB;
  int horizontal = 2, vertical = 2;  // how much coarser the colours are
  bool progressive = false;
  int quality = 90;
  bool packed_tightly = false;
  std::optional<uint8_t> one_number{};  // that all pixels are made of
};

int channels_of(J_COLOR_SPACE color) { return color == JCS_GRAYSCALE ? 1 : color == JCS_CMYK ? 4 : 3; }

std::string jpeg_of(const JpegFile& file) {
  const int channels = channels_of(file.color);
  std::vector<uint8_t> pixels = waves(file.height, file.width, channels);
  if (file.one_number) std::ranges::fill(pixels, *file.one_number);
  jpeg_compress_struct info{};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_height = static_cast<unsigned>(file.height);
  info.image_width = static_cast<unsigned>(file.width);
  info.input_components = channels;
  info.in_color_space = file.color;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, file.quality, TRUE);
  if (file.color == JCS_RGB) {
    info.comp_info[0].h_samp_factor = file.horizontal;
    info.comp_info[0].v_samp_factor = file.vertical;
  }
  if (file.packed_tightly) info.optimize_coding = TRUE;
  if (file.progressive) jpeg_simple_progression(&info);
  jpeg_start_compress(&info, TRUE);
  for (int row = 0; row < file.height; ++row) {
    JSAMPROW at = pixels.data() + row * file.width * channels;
    jpeg_write_scanlines(&info, &at, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string bytes(reinterpret_cast<const char*>(memory), size);
  std::free(memory);
  return bytes;
}

// What libjpeg-turbo itself makes of it.
std::vector<uint8_t> bare_decode(const std::string& bytes, J_COLOR_SPACE color, unsigned scale = 1,
                                 J_DCT_METHOD method = JDCT_ISLOW) {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&info, TRUE);
  info.out_color_space = color;
  info.dct_method = method;
  info.scale_num = 1;
  info.scale_denom = scale;
  jpeg_start_decompress(&info);
  const size_t stride = static_cast<size_t>(info.output_width) * static_cast<size_t>(info.output_components);
  std::vector<uint8_t> pixels(stride * info.output_height);
  while (info.output_scanline < info.output_height) {
    JSAMPROW row = pixels.data() + info.output_scanline * stride;
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_destroy_decompress(&info);
  return pixels;
}

TEST(ImageDecoder, MakesNoMoreOfAJpegThanAFirstCropKeeps) {
  const std::string bytes = jpeg_of({.height = 61, .width = 83});
  const std::vector<ImageSteps> all = {
      ImageSteps({ImageStep::center_crop(32, 40), ImageStep::to_float()}),
      ImageSteps({ImageStep::random_crop(32, 40), ImageStep::random_flip_left_right()}),
      ImageSteps({ImageStep::random_resized_crop(24, 24), ImageStep::brightness(0.5), ImageStep::to_float()})};

  for (const ImageSteps& steps : all) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      EXPECT_TRUE(steps.decode(bytes, {}, seed).equal(steps(decode_image(bytes), seed))) << seed;
    }
  }

  const std::string cut = bytes.substr(0, bytes.size() * 4 / 5);
  EXPECT_ANY_THROW(decode_image(cut));
  EXPECT_NO_THROW(ImageSteps({ImageStep::center_crop(8, 8)}).decode(cut, {}, 0)) << "it needs the upper part only";
  EXPECT_NE(status_of_decoding([&] { ImageSteps({ImageStep::center_crop(99, 8)}).decode(bytes, {}, 0); })
                .message()
                .find("image step 0 (center_crop): the picture of 61 x 83"),
            std::string::npos);
}

TEST(PngDecoder, GivesThePixelsThatWereWritten) {
  for (const bool interlaced : {false, true}) {
    const auto rgb = waves(9, 13, 3);
    const std::string bytes = png_of({.height = 9, .width = 13, .rows = rgb, .interlaced = interlaced});

    const at::Tensor picture = decode_image(bytes);

    EXPECT_EQ(picture.sizes(), (std::vector<int64_t>{9, 13, 3}));
    EXPECT_EQ(picture.scalar_type(), at::kByte);
    EXPECT_EQ(pixels_of(picture), rgb);
    EXPECT_EQ(image_size(bytes), (ImageSize{9, 13, 3}));
  }
}

TEST(PngDecoder, DropsAddsAndKeepsAlpha) {
  const auto rgba = waves(5, 6, 4), rgb = waves(5, 6, 3);
  const std::string with = png_of({.height = 5, .width = 6, .color = PNG_COLOR_TYPE_RGB_ALPHA, .rows = rgba});
  const std::string without = png_of({.height = 5, .width = 6, .rows = rgb});

  EXPECT_EQ(pixels_of(decode_image(with, {.channels = 4})), rgba);
  EXPECT_EQ(pixels_of(decode_image(with, {.channels = 0})), rgba);
  EXPECT_EQ(image_size(with).channels, 4);
  const auto dropped = pixels_of(decode_image(with)), added = pixels_of(decode_image(without, {.channels = 4}));
  for (size_t i = 0; i < 30; ++i) {
    EXPECT_TRUE(std::equal(&dropped[i * 3], &dropped[i * 3] + 3, &rgba[i * 4])) << i;
    EXPECT_TRUE(std::equal(&added[i * 4], &added[i * 4] + 3, &rgb[i * 3])) << i;
    EXPECT_EQ(added[i * 4 + 3], 255) << i;
  }
}

TEST(PngDecoder, LooksUpThePaletteAndItsAlpha) {
  const std::vector<png_color> palette = {{10, 20, 30}, {40, 50, 60}, {70, 80, 90}};
  PngFile file{.height = 1,
               .width = 4,
               .depth = 2,
               .color = PNG_COLOR_TYPE_PALETTE,
               .rows = {0b00'01'10'01},
               .palette = palette};
  const std::string opaque = png_of(file);
  file.palette_alpha = {255, 7};
  const std::string transparent = png_of(file);

  const std::vector<uint8_t> rgb = {10, 20, 30, 40, 50, 60, 70, 80, 90, 40, 50, 60};
  const std::vector<uint8_t> rgba = {10, 20, 30, 255, 40, 50, 60, 7, 70, 80, 90, 255, 40, 50, 60, 7};
  EXPECT_EQ(pixels_of(decode_image(opaque)), rgb);
  EXPECT_EQ(pixels_of(decode_image(opaque, {.channels = 0})), rgb);
  EXPECT_EQ(image_size(opaque).channels, 3);
  EXPECT_EQ(decode_image(opaque, {.channels = 4}).size(2), 4);
  EXPECT_EQ(pixels_of(decode_image(opaque, {.channels = 4}))[3], 255);
  EXPECT_EQ(pixels_of(decode_image(transparent)), rgb);
  EXPECT_EQ(pixels_of(decode_image(transparent, {.channels = 0})), rgba);
  EXPECT_EQ(image_size(transparent).channels, 4);
}

TEST(PngDecoder, KeepsTheUpperHalfOf16Bits) {
  const std::string bytes =
      png_of({.height = 1, .width = 2, .depth = 16, .rows = {1, 200, 2, 200, 3, 200, 4, 0, 5, 0, 255, 255}});

  EXPECT_EQ(pixels_of(decode_image(bytes)), (std::vector<uint8_t>{1, 2, 3, 4, 5, 255}));
  EXPECT_EQ(pixels_of(decode_image(bytes, {.channels = 4})), (std::vector<uint8_t>{1, 2, 3, 255, 4, 5, 255, 255}));
}

TEST(PngDecoder, ReadsGreyOfAnyDepth) {
  const std::string bits =
      png_of({.height = 1, .width = 4, .depth = 1, .color = PNG_COLOR_TYPE_GRAY, .rows = {0b0110'0000}});
  const std::string nibbles = png_of(
      {.height = 1, .width = 2, .depth = 4, .color = PNG_COLOR_TYPE_GRAY, .rows = {0x1f}, .transparent_grey = 15});
  const std::string alpha = png_of({.height = 1, .width = 2, .color = PNG_COLOR_TYPE_GRAY_ALPHA, .rows = {9, 8, 7, 6}});

  EXPECT_EQ(pixels_of(decode_image(bits, {.channels = 0})), (std::vector<uint8_t>{0, 255, 255, 0}));
  EXPECT_EQ(pixels_of(decode_image(nibbles)), (std::vector<uint8_t>{17, 17, 17, 255, 255, 255}));
  EXPECT_EQ(pixels_of(decode_image(nibbles, {.channels = 4})),
            (std::vector<uint8_t>{17, 17, 17, 255, 255, 255, 255, 0}));
  EXPECT_EQ(pixels_of(decode_image(alpha, {.channels = 0})), (std::vector<uint8_t>{9, 8, 7, 6}));
  EXPECT_EQ(pixels_of(decode_image(alpha, {.channels = 1})), (std::vector<uint8_t>{9, 7}));
  EXPECT_EQ(image_size(alpha).channels, 2);
}

TEST(PngDecoder, MakesGreyOfColours) {
  const std::string bytes = png_of({.height = 1, .width = 3, .rows = {255, 0, 0, 0, 255, 0, 50, 50, 50}});

  const auto grey = pixels_of(decode_image(bytes, {.channels = 1}));

  ASSERT_EQ(grey.size(), 3u);
  EXPECT_NEAR(grey[0], 0.299 * 255, 1);
  EXPECT_NEAR(grey[1], 0.587 * 255, 1);
  EXPECT_EQ(grey[2], 50);
}

TEST(PngDecoder, NoticesDamageInTheLastPixels) {
  std::string bytes = png_of({.height = 9, .width = 13, .rows = waves(9, 13, 3)});
  bytes[bytes.size() - 12 - 6] ^= 1;  // before the last chunk, in the sum of the pixels or in their end

  EXPECT_EQ(status_of_decoding([&] { decode_image(bytes); }).code(), StatusCode::kDataLoss);
}

TEST(JpegDecoder, EqualsABareDecode) {
  for (const bool progressive : {false, true}) {
    for (const int coarser : {1, 2}) {
      const JpegFile file{
          .height = 37, .width = 53, .horizontal = coarser, .vertical = coarser, .progressive = progressive};
      const std::string bytes = jpeg_of(file);

      const at::Tensor picture = decode_image(bytes);

      EXPECT_EQ(picture.sizes(), (std::vector<int64_t>{37, 53, 3}));
      EXPECT_EQ(pixels_of(picture), bare_decode(bytes, JCS_RGB));
      EXPECT_EQ(pixels_of(decode_image(bytes, {.channels = 1})), bare_decode(bytes, JCS_GRAYSCALE));
      EXPECT_EQ(pixels_of(decode_image(bytes, {.fast_transform = true})), bare_decode(bytes, JCS_RGB, 1, JDCT_IFAST));
      EXPECT_EQ(image_size(bytes), (ImageSize{37, 53, 3}));
    }
  }
}

TEST(JpegDecoder, IsCloseToWhatWasWritten) {
  const std::string bytes = jpeg_of({.height = 32, .width = 24, .color = JCS_GRAYSCALE, .quality = 100});
  const auto written = waves(32, 24, 1);

  const auto read = pixels_of(decode_image(bytes, {.channels = 0}));

  ASSERT_EQ(read.size(), written.size());
  for (size_t i = 0; i < read.size(); ++i) EXPECT_NEAR(read[i], written[i], 3) << i;
}

TEST(JpegDecoder, ReadsGreyAsGreyOrRgb) {
  const std::string bytes = jpeg_of({.height = 11, .width = 7, .color = JCS_GRAYSCALE});
  const auto grey = bare_decode(bytes, JCS_GRAYSCALE);

  EXPECT_EQ(pixels_of(decode_image(bytes, {.channels = 0})), grey);
  EXPECT_EQ(image_size(bytes).channels, 1);
  const auto rgb = pixels_of(decode_image(bytes));
  ASSERT_EQ(rgb.size(), grey.size() * 3);
  for (size_t i = 0; i < rgb.size(); ++i) EXPECT_EQ(rgb[i], grey[i / 3]) << i;
}

TEST(JpegDecoder, MakesLightOfInks) {
  const std::string bytes = jpeg_of({.height = 10, .width = 12, .color = JCS_CMYK});  // libjpeg marks it as Adobe's
  const auto inks = bare_decode(bytes, JCS_CMYK);

  const auto rgb = pixels_of(decode_image(bytes));
  const auto grey = pixels_of(decode_image(bytes, {.channels = 1}));

  ASSERT_EQ(rgb.size(), 360u);
  ASSERT_EQ(grey.size(), 120u);
  for (size_t i = 0; i < 120; ++i) {
    for (size_t c = 0; c < 3; ++c) EXPECT_EQ(rgb[i * 3 + c], inks[i * 4 + c] * inks[i * 4 + 3] / 255) << i;
    EXPECT_NEAR(grey[i], 0.299 * rgb[i * 3] + 0.587 * rgb[i * 3 + 1] + 0.114 * rgb[i * 3 + 2], 0.51) << i;
  }
  EXPECT_EQ(image_size(bytes).channels, 3);
}

TEST(JpegDecoder, HasNoAlpha) {
  const std::string bytes = jpeg_of({.height = 8, .width = 8});

  const Status status = status_of_decoding([&] { decode_image(bytes, {.channels = 4}); });

  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
}

TEST(JpegDecoder, ScalesAsFarAsBothSidesAllow) {
  const std::string bytes = jpeg_of({.height = 100, .width = 160});

  EXPECT_EQ(pixels_of(decode_image(bytes, {.scale_to = 51})), bare_decode(bytes, JCS_RGB, 1));
  EXPECT_EQ(pixels_of(decode_image(bytes, {.scale_to = 50})), bare_decode(bytes, JCS_RGB, 2));
  EXPECT_EQ(pixels_of(decode_image(bytes, {.scale_to = 25})), bare_decode(bytes, JCS_RGB, 4));
  EXPECT_EQ(pixels_of(decode_image(bytes, {.scale_to = 1})), bare_decode(bytes, JCS_RGB, 8));
  EXPECT_EQ(decode_image(bytes, {.scale_to = 1}).sizes(), (std::vector<int64_t>{13, 20, 3}));
}

TEST(JpegDecoder, GivesAWindowEqualToThatOfTheWhole) {
  struct Window {
    int64_t top, left, height, width;
  };
  const std::vector<Window> windows = {{0, 0, 70, 90},   {0, 0, 1, 1},    {69, 89, 1, 1},  {1, 16, 3, 16},
                                       {16, 32, 16, 16}, {15, 31, 34, 2}, {33, 0, 37, 90}, {0, 47, 70, 43}};
  std::vector<JpegFile> files;
  for (const bool progressive : {false, true}) {
    for (const int horizontal : {1, 2, 4}) {
      for (const int vertical : {1, 2}) {
        files.push_back(
            {.height = 70, .width = 90, .horizontal = horizontal, .vertical = vertical, .progressive = progressive});
      }
    }
    files.push_back({.height = 70, .width = 90, .color = JCS_GRAYSCALE, .progressive = progressive});
    files.push_back({.height = 70, .width = 90, .color = JCS_CMYK, .progressive = progressive});
  }
  for (const JpegFile& file : files) {
    const std::string bytes = jpeg_of(file);
    const at::Tensor whole = decode_image(bytes);
    for (const Window& w : windows) {
      const at::Tensor window = decode_and_crop_jpeg(bytes, w.top, w.left, w.height, w.width);

      EXPECT_EQ(pixels_of(window), pixels_of(whole.narrow(0, w.top, w.height).narrow(1, w.left, w.width).contiguous()))
          << file.horizontal << " x " << file.vertical << (file.progressive ? " progressive" : "") << ", window at "
          << w.top << ", " << w.left;
    }
  }
}

TEST(JpegDecoder, GivesAScaledWindowEqualToThatOfTheScaledWhole) {
  const std::string bytes = jpeg_of({.height = 150, .width = 210});

  const at::Tensor window = decode_and_crop_jpeg(bytes, 31, 45, 81, 100, {.scale_to = 40});

  const at::Tensor whole = decode_image(bytes, {.scale_to = 75});
  EXPECT_EQ(window.sizes(), (std::vector<int64_t>{41, 51, 3}));
  EXPECT_EQ(pixels_of(window), pixels_of(whole.narrow(0, 15, 41).narrow(1, 22, 51).contiguous()));
}

TEST(JpegDecoder, RefusesAWindowThatIsNotInside) {
  const std::string bytes = jpeg_of({.height = 20, .width = 30});
  const auto code = [&](int64_t top, int64_t left, int64_t height, int64_t width) {
    return status_of_decoding([&] { decode_and_crop_jpeg(bytes, top, left, height, width); }).code();
  };

  EXPECT_EQ(code(0, 0, 20, 30), StatusCode::kOk);
  for (const auto& [top, left, height, width] : std::vector<std::array<int64_t, 4>>{{-1, 0, 5, 5},
                                                                                    {0, -1, 5, 5},
                                                                                    {0, 0, 0, 5},
                                                                                    {0, 0, 5, 0},
                                                                                    {16, 0, 5, 5},
                                                                                    {0, 26, 5, 5},
                                                                                    {INT64_MAX, 0, 1, 1},
                                                                                    {1, 1, INT64_MAX, INT64_MAX}}) {
    EXPECT_EQ(code(top, left, height, width), StatusCode::kInvalidArgument) << top << ", " << left;
  }
  EXPECT_EQ(status_of_decoding([&] { decode_and_crop_jpeg("\x89PNG\r\n\x1a\n", 0, 0, 1, 1); }).code(),
            StatusCode::kInvalidArgument);
}

TEST(ImageDecoder, SurvivesAFileThatIsCutShortAnywhere) {
  const std::vector<std::string> files = {
      png_of({.height = 7, .width = 9, .rows = waves(7, 9, 3)}),
      png_of({.height = 7, .width = 9, .rows = waves(7, 9, 3), .interlaced = true}),
      jpeg_of({.height = 20, .width = 20}),
      jpeg_of({.height = 20, .width = 20, .progressive = true}),
  };
  for (const std::string& file : files) {
    ASSERT_NO_THROW(decode_image(file));
    for (size_t length = 1; length + 2 < file.size(); ++length) {
      const std::string cut = file.substr(0, length);

      testing::internal::CaptureStderr();
      const Status status = status_of_decoding([&] { decode_image(cut); });
      const std::string printed = testing::internal::GetCapturedStderr();

      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << length << " of " << file.size() << ": " << status;
      EXPECT_NE(status.message().find("cut short"), std::string::npos) << status;
      EXPECT_EQ(printed, "");
    }
  }
}

TEST(ImageDecoder, SurvivesAnyChangedByte) {
  const std::vector<std::string> files = {
      png_of({.height = 7, .width = 9, .rows = waves(7, 9, 3), .interlaced = true}),
      jpeg_of({.height = 20, .width = 20}),
      jpeg_of({.height = 20, .width = 20, .progressive = true}),
  };
  testing::internal::CaptureStderr();
  int refused = 0;
  for (const std::string& file : files) {
    for (size_t at = 0; at < file.size(); ++at) {
      for (const int change : {0x01, 0x80, 0xff}) {
        std::string changed = file;
        changed[at] = static_cast<char>(changed[at] ^ change);

        refused += !status_of_decoding([&] { decode_image(changed); }).ok();
        refused += !status_of_decoding([&] { decode_and_crop_jpeg(changed, 3, 4, 5, 6, {.scale_to = 2}); }).ok();
      }
    }
  }

  EXPECT_GT(refused, 100);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(ImageDecoder, RefusesAHeaderThatSaysMoreThanItsFileCanHold) {
  std::string jpeg = jpeg_of({.height = 16, .width = 16});
  const size_t frame = jpeg.find("\xff\xc0");
  jpeg.replace(frame + 5, 4, "\xff\xff\xff\xff");  // more than libjpeg itself takes
  std::string most = jpeg, small = jpeg;
  most.replace(frame + 5, 4, "\xfd\xe8\xfd\xe8");
  small.replace(frame + 5, 4, "\x0f\xff\x0f\xff");
  // The header's check sum must hold: a file of the wanted size is written, but only its beginning is used.
  const std::string wide = png_of({.height = 1, .width = 1'000'000, .rows = std::vector<uint8_t>(3'000'000)});

  const Status beyond = status_of_decoding([&] { decode_image(jpeg); });
  const Status huge = status_of_decoding([&] { decode_image(most); });
  const Status large = status_of_decoding([&] { decode_image(small); });
  const Status cut = status_of_decoding([&] { decode_image(wide.substr(0, 100)); });

  EXPECT_EQ(beyond.code(), StatusCode::kDataLoss) << beyond;
  EXPECT_EQ(huge.code(), StatusCode::kInvalidArgument) << huge;
  EXPECT_NE(huge.message().find("65000 x 65000"), std::string::npos) << huge;
  EXPECT_EQ(large.code(), StatusCode::kDataLoss) << large;
  EXPECT_NE(large.message().find("4095 x 4095"), std::string::npos) << large;
  EXPECT_EQ(cut.code(), StatusCode::kDataLoss) << cut;
  EXPECT_NE(cut.message().find("1 x 1000000"), std::string::npos) << cut;
  EXPECT_EQ(image_size(most), (ImageSize{65000, 65000, 3}));
}

TEST(ImageDecoder, TakesNoMorePixelsThanItIsTold) {
  const std::string jpeg = jpeg_of({.height = 16, .width = 17});
  const std::string png = png_of({.height = 16, .width = 17, .rows = waves(16, 17, 3)});

  for (const std::string& bytes : {jpeg, png}) {
    EXPECT_TRUE(status_of_decoding([&] { decode_image(bytes, {.most_pixels = 16 * 17}); }).ok());
    EXPECT_EQ(status_of_decoding([&] { decode_image(bytes, {.most_pixels = 16 * 17 - 1}); }).code(),
              StatusCode::kInvalidArgument);
  }
}

TEST(JpegDecoder, RefusesMoreScansThanAnyoneWrites) {
  // A progressive file whose last scan is there again and again: every one would cost a pass over the picture.
  const std::string file = jpeg_of({.height = 64, .width = 64, .color = JCS_GRAYSCALE, .progressive = true});
  const size_t last = file.rfind("\xff\xda");
  std::string many = file.substr(0, file.size() - 2);
  for (int i = 0; i < 200; ++i) many += file.substr(last, file.size() - 2 - last);
  many += "\xff\xd9";

  const Status status = status_of_decoding([&] { decode_image(many); });

  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("scans"), std::string::npos) << status;
}

TEST(PngDecoder, DecodesPicturesThatArePackedAsFarAsDeflateCan) {
  const std::string bytes = png_of({.height = 2000,
                                    .width = 8000,
                                    .depth = 1,
                                    .color = PNG_COLOR_TYPE_GRAY,
                                    .rows = std::vector<uint8_t>(2'000'000)});

  EXPECT_EQ(decode_image(bytes, {.channels = 1}).numel(), 16'000'000) << bytes.size();
}

TEST(JpegDecoder, DecodesOneColourPackedAsFarAsJpegCan) {
  const std::string bytes =
      jpeg_of({.height = 2048, .width = 2048, .progressive = true, .packed_tightly = true, .one_number = uint8_t{128}});

  EXPECT_EQ(decode_image(bytes).numel(), 2048 * 2048 * 3) << bytes.size();
}

#endif

}  // namespace muster::image_decoder_test
