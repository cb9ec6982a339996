#include "muster/fit/tensorboard/png.h"

#include <zlib.h>

#include <new>
#include <string_view>

#include "muster/base/status.h"

namespace muster {
namespace {

std::string big_endian(uint32_t number) {
  return {static_cast<char>(number >> 24), static_cast<char>(number >> 16), static_cast<char>(number >> 8),
          static_cast<char>(number)};
}

// A length, a name and bytes, and the sum of the latter two.
void append_chunk(std::string& file, std::string_view name, std::string_view bytes) {
  file += big_endian(static_cast<uint32_t>(bytes.size()));
  const size_t begin = file.size();
  file += name;
  file += bytes;
  const auto* summed = reinterpret_cast<const Bytef*>(file.data() + begin);
  file += big_endian(static_cast<uint32_t>(crc32(0, summed, static_cast<uInt>(file.size() - begin))));
}

}  // namespace

std::string encode_png(const at::Tensor& pixels) {
  const at::Tensor rows = pixels.cpu().contiguous();
  const int64_t height = rows.size(0), width = rows.size(1), channels = rows.size(2);
  const auto row_bytes = static_cast<size_t>(width * channels);
  constexpr int64_t kMostBytes = int64_t{1} << 30;  // a chunk has at most 2^31 - 1, zlib counts with 32 bits
  if (height * width * channels > kMostBytes) {
    throw invalid_argument("picture of ", height, " x ", width, " pixels: expected at most ", kMostBytes, " bytes");
  }

  // Before each row stands how it was filtered. "Up", the difference to the row above, suits smooth pictures and is
  // simple; a writer may choose any.
  constexpr char kUp = 2;
  std::string filtered;
  filtered.reserve(static_cast<size_t>(height) * (row_bytes + 1));
  const auto* bytes = rows.const_data_ptr<uint8_t>();
  for (int64_t y = 0; y < height; ++y) {
    const uint8_t* row = bytes + static_cast<size_t>(y) * row_bytes;
    filtered += kUp;
    for (size_t x = 0; x < row_bytes; ++x) filtered += static_cast<char>(row[x] - (y > 0 ? (row - row_bytes)[x] : 0));
  }
  std::string packed(compressBound(static_cast<uLong>(filtered.size())), '\0');
  auto packed_bytes = static_cast<uLongf>(packed.size());
  const int result =
      compress2(reinterpret_cast<Bytef*>(packed.data()), &packed_bytes, reinterpret_cast<const Bytef*>(filtered.data()),
                static_cast<uLong>(filtered.size()), Z_DEFAULT_COMPRESSION);
  if (result != Z_OK) throw std::bad_alloc();  // all that it can have: the room suffices
  packed.resize(packed_bytes);

  constexpr char kColourTypes[] = {0, 4, 2, 6};  // by channels
  std::string header = big_endian(static_cast<uint32_t>(width)) + big_endian(static_cast<uint32_t>(height));
  // 8 bits; the colour type; the only compression and filtering that there are; not interlaced.
  header += {8, kColourTypes[channels - 1], 0, 0, 0};
  std::string file = "\x89PNG\r\n\x1a\n";
  append_chunk(file, "IHDR", header);
  append_chunk(file, "IDAT", packed);
  append_chunk(file, "IEND", "");
  return file;
}

}  // namespace muster
