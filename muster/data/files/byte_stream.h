#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "muster/base/status.h"
#include "muster/data/files/compression.h"
#include "muster/io/input_file.h"

namespace muster {

// The bytes of a file from front to back, uncompressed. Reads and inflates a block at a time, so that what it holds
// does not depend on the file, but on how many bytes the caller wants to see after each other. Not thread-safe.
class ByteStream {
 public:
  // Throws what InputFile throws. Memory is asked for by the first peek().
  ByteStream(std::string path, Compression compression);
  ~ByteStream();
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // At least `count` bytes that lie after each other, all that are at hand; fewer only at the end of the file. Valid
  // until the next call.
  // Throws Error{kDataLoss} for damaged compressed data, once the bytes before it do not suffice, and then again at
  // each call that needs more. After another error (a disk that is away) a call may be repeated.
  std::string_view peek(size_t count) {
    if (end_ - begin_ < count) fill(count);
    return {buffer_.get() + begin_, end_ - begin_};
  }
  // Moves on. What peek() gave stays valid. REQUIRES: peek() gave as many.
  void take(size_t count) { begin_ += count; }

  // How many bytes were taken.
  int64_t position() const { return filled_ - static_cast<int64_t>(end_ - begin_); }
  // How many can still be taken; nobody knows that of a compressed file.
  std::optional<int64_t> left() const;
  const std::string& path() const { return file_.path(); }
  const InputFile& file() const { return file_; }  // for those who read elsewhere in it

 private:
  struct Inflation;

  void fill(size_t count);
  void make_room(size_t count);
  void read_block(size_t count);
  void inflate_block();
  void break_off(std::string_view why);

  const InputFile file_;
  const std::unique_ptr<Inflation> inflation_;  // null: not compressed
  // The bytes at hand are [begin_, end_) of the buffer.
  std::unique_ptr<char[]> buffer_;
  size_t capacity_ = 0, begin_ = 0, end_ = 0;
  int64_t filled_ = 0;  // bytes that ever came into the buffer
  bool ended_ = false;
  std::optional<Status> broken_;  // why nothing comes after what is at hand
};

}  // namespace muster
