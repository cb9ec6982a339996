#include "muster/data/images/image_decoder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

#ifdef MUSTER_HAS_IMAGES
#include <jpeglib.h>
#include <png.h>
#endif

namespace muster {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kPngSignature = "\x89PNG\r\n\x1a\n"sv, kJpegSignature = "\xff\xd8\xff"sv;

enum class PictureFormat { kPng, kJpeg };

// What bytes that are neither look like, by their first ones.
std::string look_of_picture(std::string_view bytes) {
  const auto begins = [&](std::string_view with) { return bytes.starts_with(with); };
  if (begins("GIF8")) return "a GIF";
  if (begins("BM")) return "a BMP";
  if (begins("RIFF") && bytes.size() >= 12 && bytes.substr(8, 4) == "WEBP") return "a WebP";
  if (begins("II*\0"sv) || begins("MM\0*"sv)) return "a TIFF";
  if (bytes.size() >= 12 && bytes.substr(4, 4) == "ftyp") return "a HEIF or AVIF (or a film)";
  if (begins("\0\0\0\x0cJXL "sv) || begins("\xff\x0a"sv)) return "a JPEG XL";
  if (begins("\0\0\0\x0cjP  "sv)) return "a JPEG 2000";
  if (begins("\x1f\x8b"sv)) return "something packed by gzip";
  if (begins("<svg") || begins("<?xml") || begins("<!DOCTYPE") || begins("<html")) return "a text (XML or HTML)";
  std::string look = "nothing known: they begin with";
  for (const char byte : bytes.substr(0, 4)) {
    str_append(look, " ", absl::Hex(static_cast<unsigned char>(byte), absl::kZeroPad2));
  }
  return look;
}

PictureFormat picture_format(std::string_view bytes) {
  if (bytes.empty()) throw invalid_argument("image: no bytes; expected a PNG or JPEG file");
  if (bytes.starts_with(kPngSignature)) return PictureFormat::kPng;
  if (bytes.starts_with(kJpegSignature)) return PictureFormat::kJpeg;
  const bool begun_png = kPngSignature.starts_with(bytes);
  if (begun_png || kJpegSignature.starts_with(bytes)) {
    throw data_loss(begun_png ? "PNG" : "JPEG", " of ", bytes.size(), " bytes: cut short");
  }
  throw invalid_argument("image: ", bytes.size(), " bytes that look like ", look_of_picture(bytes),
                         "; expected a PNG or JPEG file");
}

void check_decode_options(const DecodeOptions& options) {
  if (options.channels != 0 && options.channels != 1 && options.channels != 3 && options.channels != 4) {
    throw invalid_argument("decode_image: channels is ", options.channels, "; expected 0 (as in the file), 1, 3 or 4");
  }
  if (options.scale_to < 0)
    throw invalid_argument("decode_image: scale_to is ", options.scale_to, "; expected 0 or more");
  if (options.most_pixels < 1) {
    throw invalid_argument("decode_image: most_pixels is ", options.most_pixels, "; expected 1 or more");
  }
}

struct PictureWindow {
  int64_t top, left, height, width;
};

#ifdef MUSTER_HAS_IMAGES

static_assert(BITS_IN_JSAMPLE == 8);

constexpr int64_t kMostJpegGrowth = 2048;  // 1 bit for each block of 8 x 8, colours 4 x 4 times as coarse: 1365
constexpr int64_t kMostPngGrowth = 1032;   // deflate: 258 bytes from 2 bits
constexpr int kMostJpegScans = 100;        // each costs as much as a decoding; real files have about 10

// Where both libraries' errors land. They leave by longjmp, which must not pass a destructor; so what is called through
// survives() holds plain values only, and what needs a destructor lives outside.
struct PictureFault {
  std::jmp_buf jump;
  bool cut_short;
  char message[256];
};

template <class Call>
bool survives(PictureFault& fault, const Call& call) {
  if (setjmp(fault.jump) != 0) return false;  // NOLINT(cert-err52-cpp): the libraries know no other way
  call();
  return true;
}

Error picture_damage(std::string_view format, std::string_view bytes, const PictureFault& fault) {
  return data_loss(format, " of ", bytes.size(), " bytes: ", fault.cut_short ? "cut short" : fault.message);
}

void check_pixels(std::string_view format, const ImageSize& size, const DecodeOptions& options) {
  if (size.height > options.most_pixels / size.width) {
    throw invalid_argument(format, " of ", size.height, " x ", size.width,
                           " (height x width): more pixels than most_pixels, ", options.most_pixels);
  }
}

// REQUIRES: check_pixels(), so that `held` did not overflow.
void check_growth(std::string_view format, const ImageSize& size, int64_t held, int64_t most_growth,
                  std::string_view bytes) {
  if (held / most_growth > static_cast<int64_t>(bytes.size())) {
    throw data_loss(format, " of ", bytes.size(), " bytes: cut short; it says ", size.height, " x ", size.width,
                    " (height x width), which needs at least ", held / most_growth, " bytes");
  }
}

at::Tensor empty_picture(int64_t height, int64_t width, int64_t channels) {
  PlainTensors plain;
  return at::empty({height, width, channels}, at::kByte);
}

// A JPEG whose header was read. Not movable: libjpeg keeps pointers into it.
class JpegReader {
 public:
  explicit JpegReader(std::string_view bytes) : JpegReader(bytes, Prepared{}) {
    must_survive([this] {
      jpeg_create_decompress(&info_);
      info_.src = &source_;
      jpeg_read_header(&info_, TRUE);
    });
    size_ = {.height = info_.image_height, .width = info_.image_width, .channels = info_.num_components == 1 ? 1 : 3};
  }
  ~JpegReader() { jpeg_destroy_decompress(&info_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  const ImageSize& size() const { return size_; }
  at::Tensor decode(const std::optional<PictureWindow>& window, const DecodeOptions& options);

 private:
  struct Prepared {};

  // Complete before anything can fail, so that the destructor always runs.
  JpegReader(std::string_view bytes, Prepared) : bytes_(bytes) {
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = this;
    errors_.error_exit = [](j_common_ptr info) {
      PictureFault& fault = self(info).fault_;
      static_assert(sizeof(fault.message) >= JMSG_LENGTH_MAX);
      info->err->format_message(info, fault.message);
      std::longjmp(fault.jump, 1);  // NOLINT(cert-err52-cpp)
    };
    errors_.output_message = [](j_common_ptr) {};
    errors_.emit_message = [](j_common_ptr, int) {};
    source_.next_input_byte = reinterpret_cast<const JOCTET*>(bytes.data());
    source_.bytes_in_buffer = bytes.size();
    source_.init_source = [](j_decompress_ptr) {};
    source_.term_source = [](j_decompress_ptr) {};
    source_.resync_to_restart = jpeg_resync_to_restart;
    source_.fill_input_buffer = [](j_decompress_ptr info) -> boolean {
      end_early(self(reinterpret_cast<j_common_ptr>(info)).fault_);
    };
    source_.skip_input_data = [](j_decompress_ptr info, long count) {
      if (count <= 0) return;
      if (static_cast<size_t>(count) > info->src->bytes_in_buffer) {
        end_early(self(reinterpret_cast<j_common_ptr>(info)).fault_);
      }
      info->src->next_input_byte += count;
      info->src->bytes_in_buffer -= static_cast<size_t>(count);
    };
    progress_.progress_monitor = [](j_common_ptr info) {
      PictureFault& fault = self(info).fault_;
      if (reinterpret_cast<j_decompress_ptr>(info)->input_scan_number <= kMostJpegScans) return;
      std::snprintf(fault.message, sizeof(fault.message), "more than %d scans", kMostJpegScans);
      std::longjmp(fault.jump, 1);  // NOLINT(cert-err52-cpp)
    };
  }

  static JpegReader& self(j_common_ptr info) { return *static_cast<JpegReader*>(info->client_data); }

  [[noreturn]] static void end_early(PictureFault& fault) {
    fault.cut_short = true;
    std::longjmp(fault.jump, 1);  // NOLINT(cert-err52-cpp)
  }

  template <class Call>
  void must_survive(const Call& call) {
    if (!survives(fault_, call)) throw picture_damage("JPEG", bytes_, fault_);
  }

  // Sets libjpeg's scale and gives the window in pixels of the scaled picture.
  PictureWindow scale(const PictureWindow& window, int64_t scale_to);
  // REQUIRES: called through must_survive(). `scratch` holds a row of four samples a pixel where one is needed.
  void read_rows(const PictureWindow& window, int64_t channels, uint8_t* pixels, uint8_t* scratch);

  const std::string_view bytes_;
  ImageSize size_{};
  PictureFault fault_{};
  jpeg_error_mgr errors_{};
  jpeg_source_mgr source_{};
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct info_{};
};

PictureWindow JpegReader::scale(const PictureWindow& window, int64_t scale_to) {
  const auto scaled = [](int64_t side, int64_t by) { return (side + by - 1) / by; };
  int64_t by = 1;
  const int64_t shorter = std::min(window.height, window.width);
  while (scale_to > 0 && by < 8 && scaled(shorter, by * 2) >= scale_to) by *= 2;
  info_.scale_num = 1;
  info_.scale_denom = static_cast<unsigned>(by);
  const int64_t top = window.top / by, left = window.left / by;
  return {.top = top,
          .left = left,
          .height = scaled(window.top + window.height, by) - top,
          .width = scaled(window.left + window.width, by) - left};
}

// Inks become light as TensorFlow does it: Adobe's files hold the inks inverted.
void mix_inks(const uint8_t* inks, int64_t count, bool inverted, int64_t channels, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i, inks += 4, out += channels) {
    int light[3];
    for (int c = 0; c < 3; ++c) light[c] = inverted ? inks[3] * inks[c] / 255 : (255 - inks[3]) * (255 - inks[c]) / 255;
    if (channels == 1) {
      out[0] = static_cast<uint8_t>((299 * light[0] + 587 * light[1] + 114 * light[2] + 500) / 1000);
    } else {
      for (int c = 0; c < 3; ++c) out[c] = static_cast<uint8_t>(light[c]);
    }
  }
}

void JpegReader::read_rows(const PictureWindow& window, int64_t channels, uint8_t* pixels, uint8_t* scratch) {
  constexpr JDIMENSION kRowsAtOnce = 16, kMargin = 8;
  jpeg_start_decompress(&info_);
  const auto left = static_cast<JDIMENSION>(window.left), width = static_cast<JDIMENSION>(window.width);
  JDIMENSION first = 0;  // the column that the rows begin with
  // Limit: libjpeg-turbo crops a scaled picture to other pixels than those of the whole, so there all columns are made.
  if (width < info_.output_width && info_.scale_denom == 1) {
    // Smooth upsampling looks at the neighbours, so the margin makes the window's edges equal to those of the whole.
    first = left < kMargin ? 0 : left - kMargin;
    JDIMENSION cropped = std::min(left + width + kMargin, info_.output_width) - first;
    jpeg_crop_scanline(&info_, &first, &cropped);
  }
  if (window.top > 0) jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(window.top));

  const auto row_bytes = static_cast<size_t>(window.width * channels);
  const auto end = static_cast<JDIMENSION>(window.top + window.height);
  const bool inks = info_.out_color_space == JCS_CMYK;
  JSAMPROW rows[kRowsAtOnce];
  if (!inks && info_.output_width == width) {
    while (info_.output_scanline < end) {
      const JDIMENSION count = std::min(kRowsAtOnce, end - info_.output_scanline);
      for (JDIMENSION row = 0; row < count; ++row) rows[row] = pixels + row * row_bytes;
      pixels += jpeg_read_scanlines(&info_, rows, count) * row_bytes;
    }
    return;
  }
  const uint8_t* from = scratch + (left - first) * static_cast<JDIMENSION>(info_.output_components);
  for (; info_.output_scanline < end; pixels += row_bytes) {
    rows[0] = scratch;
    jpeg_read_scanlines(&info_, rows, 1);
    if (inks) {
      mix_inks(from, window.width, info_.saw_Adobe_marker != FALSE, channels, pixels);
    } else {
      std::memcpy(pixels, from, row_bytes);
    }
  }
}

at::Tensor JpegReader::decode(const std::optional<PictureWindow>& window, const DecodeOptions& options) {
  check_pixels("JPEG", size_, options);
  check_growth("JPEG", size_, size_.height * size_.width * info_.num_components, kMostJpegGrowth, bytes_);
  if (options.channels == 4) throw invalid_argument("JPEG: has no alpha; expected channels = 0, 1 or 3, got 4");
  const int64_t channels = options.channels == 0 ? size_.channels : options.channels;
  const bool inks = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
  info_.out_color_space = inks ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  info_.dct_method = options.fast_transform ? JDCT_IFAST : JDCT_ISLOW;
  const PictureWindow whole{.top = 0, .left = 0, .height = size_.height, .width = size_.width};
  const PictureWindow scaled = scale(window.value_or(whole), options.scale_to);
  must_survive([this] {
    jpeg_calc_output_dimensions(&info_);
    if (jpeg_has_multiple_scans(&info_)) info_.progress = &progress_;
  });

  const at::Tensor picture = empty_picture(scaled.height, scaled.width, channels);
  std::vector<uint8_t> scratch;
  if (inks || window) scratch.resize(static_cast<size_t>(info_.output_width) * 4);
  auto* const pixels = static_cast<uint8_t*>(picture.data_ptr());
  uint8_t* const row = scratch.data();
  must_survive([this, &scaled, channels, pixels, row] { read_rows(scaled, channels, pixels, row); });
  return picture;
}

// A PNG whose chunks before the pixels were read.
class PngReader {
 public:
  explicit PngReader(std::string_view bytes) : PngReader(bytes, Prepared{}) {
    if (png_ == nullptr || info_ == nullptr) throw resource_exhausted("PNG: no memory to decode it");
    must_survive([this] { read_header(); });
    size_ = {.height = png_get_image_height(png_, info_),
             .width = png_get_image_width(png_, info_),
             .channels = png_get_channels(png_, info_)};
    if (color_type() == PNG_COLOR_TYPE_PALETTE) size_.channels = transparent() ? 4 : 3;
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  const ImageSize& size() const { return size_; }
  at::Tensor decode(const DecodeOptions& options);

 private:
  struct Prepared {};

  PngReader(std::string_view bytes, Prepared) : bytes_(bytes), left_(bytes) {
    png_ = png_create_read_struct(
        PNG_LIBPNG_VER_STRING, this,
        [](png_structp png, png_const_charp message) {
          PictureFault& fault = static_cast<PngReader*>(png_get_error_ptr(png))->fault_;
          std::snprintf(fault.message, sizeof(fault.message), "%s", message);
          std::longjmp(fault.jump, 1);  // NOLINT(cert-err52-cpp)
        },
        [](png_structp, png_const_charp) {});
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }

  template <class Call>
  void must_survive(const Call& call) {
    if (!survives(fault_, call)) throw picture_damage("PNG", bytes_, fault_);
  }

  int color_type() const { return png_get_color_type(png_, info_); }
  bool transparent() const { return png_get_valid(png_, info_, PNG_INFO_tRNS) != 0; }

  // REQUIRES, of these three: called through must_survive().
  void read_header();
  void set_conversions(int64_t channels);
  void read_rows(uint8_t* pixels);

  const std::string_view bytes_;
  std::string_view left_;
  ImageSize size_{};
  PictureFault fault_{};
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int passes_ = 1;
};

void PngReader::read_header() {
  png_set_read_fn(png_, this, [](png_structp png, png_bytep to, size_t count) {
    auto& self = *static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > self.left_.size()) {
      self.fault_.cut_short = true;
      std::longjmp(self.fault_.jump, 1);  // NOLINT(cert-err52-cpp)
    }
    std::memcpy(to, self.left_.data(), count);
    self.left_.remove_prefix(count);
  });
  // Ours are checked once the size is known, with words that say what was wrong.
  png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
#ifdef PNG_HANDLE_AS_UNKNOWN_SUPPORTED
  // Texts and profiles may unpack to far more than they are, and nobody asks for them.
  static constexpr png_byte kPassedOver[] = "iCCP\0tEXt\0zTXt\0iTXt\0eXIf\0sPLT\0hIST\0pCAL\0sCAL";
  png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, kPassedOver, sizeof(kPassedOver) / 5);
#endif
  png_read_info(png_, info_);
}

void PngReader::set_conversions(int64_t channels) {
  const bool wants_alpha = channels == 2 || channels == 4;
  const bool has_alpha = (color_type() & PNG_COLOR_MASK_ALPHA) != 0;
  if (wants_alpha && !has_alpha) {
    if (transparent()) {
      png_set_tRNS_to_alpha(png_);
    } else {
      png_set_add_alpha(png_, 0xffff, PNG_FILLER_AFTER);
    }
  } else if (!wants_alpha && (has_alpha || transparent())) {
    png_set_strip_alpha(png_);
  }
  const int depth = png_get_bit_depth(png_, info_);
  if (depth > 8) png_set_strip_16(png_);
  png_set_packing(png_);
  if (color_type() == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
  const bool is_grey = (color_type() & PNG_COLOR_MASK_COLOR) == 0;
  if (is_grey && depth < 8) png_set_expand_gray_1_2_4_to_8(png_);
  if (is_grey && channels >= 3) png_set_gray_to_rgb(png_);
  if (!is_grey && channels < 3) png_set_rgb_to_gray_fixed(png_, PNG_ERROR_ACTION_NONE, 29900, 58700);
}

void PngReader::read_rows(uint8_t* pixels) {
  const size_t row_bytes = png_get_rowbytes(png_, info_);
  for (int pass = 0; pass < passes_; ++pass) {
    for (int64_t row = 0; row < size_.height; ++row) {
      png_read_row(png_, pixels + static_cast<size_t>(row) * row_bytes, nullptr);
    }
  }
  png_read_end(png_, nullptr);  // the last check sum is looked at only here
}

at::Tensor PngReader::decode(const DecodeOptions& options) {
  check_pixels("PNG", size_, options);
  const int64_t bits = png_get_bit_depth(png_, info_) * png_get_channels(png_, info_);
  check_growth("PNG", size_, size_.height * ((size_.width * bits + 7) / 8 + 1), kMostPngGrowth, bytes_);
  const int64_t channels = options.channels == 0 ? size_.channels : options.channels;
  must_survive([this, channels] {
    set_conversions(channels);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
  });
  if (png_get_rowbytes(png_, info_) != static_cast<size_t>(size_.width * channels)) {
    throw internal("PNG of ", size_.height, " x ", size_.width, ": libpng gives rows of ",
                   png_get_rowbytes(png_, info_), " bytes for ", channels, " channels");
  }
  const at::Tensor picture = empty_picture(size_.height, size_.width, channels);
  auto* const pixels = static_cast<uint8_t*>(picture.data_ptr());
  must_survive([this, pixels] { read_rows(pixels); });
  return picture;
}

#else

Error no_decoders() {
  return failed_precondition(
      "image: Muster was built without libjpeg-turbo and libpng; install libjpeg-dev and libpng-dev (Debian, Ubuntu), "
      "then "
      "configure and build it again");
}

// What the functions below need of the readers.
struct JpegReader {
  explicit JpegReader(std::string_view) { throw no_decoders(); }
  ImageSize size() const { return {}; }
  at::Tensor decode(const std::optional<PictureWindow>&, const DecodeOptions&) { return {}; }
};
struct PngReader {
  explicit PngReader(std::string_view) { throw no_decoders(); }
  ImageSize size() const { return {}; }
  at::Tensor decode(const DecodeOptions&) { return {}; }
};

#endif

}  // namespace

ImageSize image_size(std::string_view bytes) {
  return picture_format(bytes) == PictureFormat::kPng ? PngReader(bytes).size() : JpegReader(bytes).size();
}

at::Tensor decode_image(std::string_view bytes, const DecodeOptions& options) {
  check_decode_options(options);
  if (picture_format(bytes) == PictureFormat::kPng) return PngReader(bytes).decode(options);
  return JpegReader(bytes).decode(std::nullopt, options);
}

at::Tensor decode_and_crop_jpeg(std::string_view bytes, int64_t top, int64_t left, int64_t height, int64_t width,
                                const DecodeOptions& options) {
  check_decode_options(options);
  if (picture_format(bytes) == PictureFormat::kPng)
    throw invalid_argument("decode_and_crop_jpeg: a PNG; expected a JPEG");
  JpegReader reader(bytes);
  const ImageSize& size = reader.size();
  if (top < 0 || left < 0 || height < 1 || width < 1 || height > size.height || width > size.width ||
      top > size.height - height || left > size.width - width) {
    throw invalid_argument("decode_and_crop_jpeg: the window of ", height, " x ", width, " (height x width) at top ",
                           top, ", left ", left, " is not inside the picture of ", size.height, " x ", size.width);
  }
  return reader.decode(PictureWindow{.top = top, .left = left, .height = height, .width = width}, options);
}

}  // namespace muster
