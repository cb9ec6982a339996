#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "bench/workloads.h"
#include "muster/data/dataset.h"
#include "muster/data/sources/source.h"
#include "muster/runtime/worker/local_worker.h"

#ifdef MUSTER_HAS_IMAGES
#include <jpeglib.h>
#endif

namespace muster::bench {

#ifdef MUSTER_HAS_IMAGES
namespace {

constexpr int kPictures = 5'000, kPicturesPerBatch = 64, kPictureClasses = 10;
constexpr unsigned kPictureSide = 256, kPictureCrop = 224;

// Waves with some noise; peers/data_images.py draws the same ones.
std::vector<uint8_t> picture_number(uint32_t number) {
  auto wave = [](uint32_t at) { return static_cast<uint32_t>(std::abs(static_cast<int>(at % 256) - 128)); };
  std::vector<uint8_t> pixels;
  pixels.reserve(size_t{3} * kPictureSide * kPictureSide);
  for (uint32_t y = 0; y < kPictureSide; ++y) {
    for (uint32_t x = 0; x < kPictureSide; ++x) {
      for (uint32_t channel = 0; channel < 3; ++channel) {
        uint32_t noise = x * 374'761'393U + y * 668'265'263U + (3 * number + channel) * 2'246'822'519U;
        noise = (noise ^ (noise >> 13)) * 1'274'126'177U;
        const uint32_t waves = wave(x * (1 + number % 3) + 40 * channel) + wave(y * (1 + number % 5) + 3 * number);
        pixels.push_back(static_cast<uint8_t>(waves * 7 / 8 + (noise >> 28)));
      }
    }
  }
  return pixels;
}

void write_jpeg(const std::string& path, std::vector<uint8_t> pixels) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) throw unavailable("file \"", path, "\" cannot be written");
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  jpeg_stdio_dest(&info, file);
  info.image_width = info.image_height = kPictureSide;
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 90, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = pixels.data() + size_t{3} * kPictureSide * info.next_scanline;
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::fclose(file);
}

// A folder for each class, as Dataset::image_folder wants it.
class ScratchPictures {
 public:
  ScratchPictures()
      : path_(std::filesystem::temp_directory_path() / str_cat("muster-bench-", ::getpid(), "-pictures")) {
    for (int number = 0; number < kPictures; ++number) {
      const std::filesystem::path folder = path_ / str_cat("class", number % kPictureClasses);
      std::filesystem::create_directories(folder);
      write_jpeg(folder / str_cat(number, ".jpg"), picture_number(static_cast<uint32_t>(number)));
    }
  }
  ~ScratchPictures() { std::filesystem::remove_all(path_); }
  ScratchPictures(const ScratchPictures&) = delete;
  ScratchPictures& operator=(const ScratchPictures&) = delete;
  std::string path() const { return path_.string(); }

 private:
  const std::filesystem::path path_;
};

}  // namespace

void data_images(const Part& part, Bench& bench) {
  const ScratchPictures pictures;
  const Dataset dataset = Dataset::image_folder(pictures.path())
                              .decode_images("image",
                                             {.decode = {.fast_transform = true},  // as TensorFlow's default
                                              .steps = {ImageStep::center_crop(kPictureCrop, kPictureCrop)}},
                                             {.threads = part.threads})
                              .batch(kPicturesPerBatch)
                              .prefetch(2);
  bench.rate({part.name, "examples/s"}, kPictures, [&] {
    const std::unique_ptr<ElementSource> source = dataset.open(local_worker());
    int64_t count = 0;
    while (const std::optional<Element> batch = source->next()) count += batch->at(0).size(0);
    if (count != kPictures) throw internal("a dataset of ", kPictures, " pictures gave ", count);
  });
}
#else
void data_images(const Part&, Bench&) {
  throw failed_precondition("data_images: Muster was built without libjpeg-dev and libpng-dev");
}
#endif

}  // namespace muster::bench
