#include "muster/data/files/byte_stream.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "muster/base/check.h"

namespace muster {
namespace {

// Stays in the cache between the copy out of the kernel and the reader.
constexpr size_t kStreamBlock = 256 << 10;

}  // namespace

// zlib's state, which must not move, and the block of the file that it reads.
struct ByteStream::Inflation {
  explicit Inflation(Compression compression) : many(compression == Compression::kGzip) {
    const int gzip = compression == Compression::kGzip ? 16 : 0;
    if (inflateInit2(&zlib, MAX_WBITS + gzip) != Z_OK) throw std::bad_alloc();
  }
  ~Inflation() { inflateEnd(&zlib); }
  Inflation(const Inflation&) = delete;
  Inflation& operator=(const Inflation&) = delete;

  const bool many;  // members may follow each other
  z_stream zlib{};
  std::unique_ptr<char[]> input;
  int64_t read = 0;  // of the file

  // Bytes of the file that were inflated.
  int64_t offset() const { return read - static_cast<int64_t>(zlib.avail_in); }

  // Leaves everything as it is when it throws, so that it can be repeated.
  void read_block(const InputFile& file) {
    const auto some = static_cast<size_t>(std::min<int64_t>(kStreamBlock, file.size() - read));
    if (!input) input = std::make_unique_for_overwrite<char[]>(some);
    file.read(read, std::as_writable_bytes(std::span(input.get(), some)));
    zlib.next_in = reinterpret_cast<Bytef*>(input.get());
    zlib.avail_in = static_cast<uInt>(some);
    read += static_cast<int64_t>(some);
  }
};

ByteStream::ByteStream(std::string path, Compression compression)
    : file_(std::move(path)),
      inflation_(compression == Compression::kNone ? nullptr : std::make_unique<Inflation>(compression)) {}

ByteStream::~ByteStream() = default;

std::optional<int64_t> ByteStream::left() const {
  if (inflation_) return std::nullopt;
  return file_.size() - position();
}

void ByteStream::fill(size_t count) {
  while (end_ - begin_ < count && !ended_) {
    if (broken_) throw Error(*broken_);
    make_room(count);
    if (inflation_) {
      inflate_block();
    } else {
      read_block(count);
    }
  }
}

// Sees that bytes can come behind those at hand, and that `count` will lie after each other.
void ByteStream::make_room(size_t count) {
  const size_t held = end_ - begin_;
  size_t wanted = std::max(count, kStreamBlock), most = 2 * capacity_;
  if (inflation_) {
    // Nobody knows how many bytes will come, so memory grows with those that have.
    wanted = std::min(wanted, std::max(2 * held, kStreamBlock));
  } else {
    const auto rest = static_cast<size_t>(*left());
    wanted = std::min(wanted, rest);
    most = std::min(most, rest);
  }
  if (capacity_ < wanted) {
    // Twice as much, for a line that becomes longer and longer.
    const size_t capacity = std::max(wanted, most);
    auto larger = std::make_unique_for_overwrite<char[]>(capacity);
    if (held > 0) std::memcpy(larger.get(), buffer_.get() + begin_, held);
    buffer_ = std::move(larger);
    capacity_ = capacity;
  } else if (held > begin_ && capacity_ - begin_ >= wanted) {
    return;  // to move more bytes than were taken would be too many, and there is room
  } else if (held > 0) {
    std::memmove(buffer_.get(), buffer_.get() + begin_, held);
  }
  begin_ = 0;
  end_ = held;
}

void ByteStream::read_block(size_t count) {
  const size_t missing = std::max(count - (end_ - begin_), kStreamBlock);
  const size_t some = std::min({missing, capacity_ - end_, static_cast<size_t>(file_.size() - filled_)});
  file_.read(filled_, std::as_writable_bytes(std::span(buffer_.get() + end_, some)));
  end_ += some;
  filled_ += static_cast<int64_t>(some);
  ended_ = filled_ == file_.size();
}

void ByteStream::inflate_block() {
  z_stream& zlib = inflation_->zlib;
  const auto room = static_cast<uInt>(std::min(capacity_ - end_, kStreamBlock));
  MUSTER_CHECK(room > 0);
  zlib.next_out = reinterpret_cast<Bytef*>(buffer_.get() + end_);
  zlib.avail_out = room;
  while (zlib.avail_out == room && !ended_ && !broken_) {
    if (zlib.avail_in == 0) inflation_->read_block(file_);
    const int result = inflate(&zlib, Z_NO_FLUSH);
    const bool more = inflation_->offset() < file_.size();
    if (result == Z_STREAM_END) {
      if (!more) {
        ended_ = true;
      } else if (inflation_->many) {
        inflateReset(&zlib);
      } else {
        break_off("bytes follow the end of the compressed data");
      }
    } else if (result == Z_MEM_ERROR) {
      throw std::bad_alloc();
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      break_off(zlib.msg != nullptr ? zlib.msg : "it needs a dictionary");
    } else if (!more && zlib.avail_out > 0) {
      break_off("the file ends within it");
    }
  }
  const size_t some = room - zlib.avail_out;
  end_ += some;
  filled_ += static_cast<int64_t>(some);
}

// What was inflated before stays good.
void ByteStream::break_off(std::string_view why) {
  broken_ = data_loss("file \"", path(), "\": the compressed data is damaged at byte ", inflation_->offset(), " of ",
                      file_.size(), ": ", why)
                .status();
}

}  // namespace muster
