#include "muster/data/files/tfrecord_writer.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <new>
#include <span>
#include <utility>

#include "muster/base/status.h"
#include "muster/data/files/tfrecord_frame.h"
#include "muster/io/output_file.h"

namespace muster {
namespace {

constexpr size_t kWriterBlock = 256 << 10;

template <size_t count>
std::string_view text_of(const std::array<char, count>& bytes) {
  return {bytes.data(), count};
}

}  // namespace

// zlib's state, which must not move, and the block that it writes.
struct TfRecordWriter::Deflation {
  explicit Deflation(Compression compression) : output(std::make_unique_for_overwrite<char[]>(kWriterBlock)) {
    const int gzip = compression == Compression::kGzip ? 16 : 0;
    constexpr int kMemory = 8;  // zlib's own choice
    if (deflateInit2(&zlib, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + gzip, kMemory, Z_DEFAULT_STRATEGY) != Z_OK) {
      throw std::bad_alloc();
    }
    empty();
  }
  ~Deflation() { deflateEnd(&zlib); }
  Deflation(const Deflation&) = delete;
  Deflation& operator=(const Deflation&) = delete;

  // Compresses these bytes, and writes whenever the block is full or the last bytes are in it.
  void write(std::string_view bytes, bool last, OutputFile& file) {
    while (true) {
      const size_t some = std::min(bytes.size(), kWriterBlock);  // zlib counts with 32 bits
      zlib.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      zlib.avail_in = static_cast<uInt>(some);
      const int result = deflate(&zlib, last && some == bytes.size() ? Z_FINISH : Z_NO_FLUSH);
      bytes.remove_prefix(some - zlib.avail_in);
      const bool done = last ? result == Z_STREAM_END : bytes.empty() && zlib.avail_out > 0;
      if (zlib.avail_out == 0 || (last && done)) {
        file.write(std::as_bytes(std::span(output.get(), kWriterBlock - zlib.avail_out)));
        empty();
      }
      if (done) return;
    }
  }

  void empty() {
    zlib.next_out = reinterpret_cast<Bytef*>(output.get());
    zlib.avail_out = kWriterBlock;
  }

  z_stream zlib{};
  const std::unique_ptr<char[]> output;
};

TfRecordWriter::TfRecordWriter(std::string path, Compression compression)
    : file_(std::make_unique<OutputFile>(std::move(path))),
      deflation_(compression == Compression::kNone ? nullptr : std::make_unique<Deflation>(compression)) {
  block_.reserve(kWriterBlock);
}

TfRecordWriter::~TfRecordWriter() = default;

const std::string& TfRecordWriter::path() const { return file_->path(); }

void TfRecordWriter::write(std::string_view record) {
  if (state_ != State::kOpen) {
    throw failed_precondition("file \"", path(), "\": a record was written after ",
                              state_ == State::kClosed ? "the file was closed" : "an error");
  }
  if (deflation_ && record.size() > kMaxCompressedRecordBytes) {
    throw invalid_argument("file \"", path(), "\": record ", count_, ": has ", record.size(), " bytes, at most ",
                           kMaxCompressedRecordBytes, " are allowed in a compressed file");
  }
  state_ = State::kBroken;
  put(text_of(tfrecord_head(record)));
  put(record);
  put(text_of(tfrecord_tail(record)));
  state_ = State::kOpen;
  ++count_;
}

void TfRecordWriter::close() {
  if (state_ == State::kClosed) return;
  if (state_ == State::kBroken) {
    throw failed_precondition("file \"", path(), "\": cannot be closed, since writing a record to it failed");
  }
  state_ = State::kBroken;
  write_block(block_, true);
  file_->finish();
  state_ = State::kClosed;
}

void TfRecordWriter::put(std::string_view bytes) {
  while (bytes.size() > kWriterBlock - block_.size()) {
    // A whole block of a large record goes out as it lies.
    if (block_.empty()) {
      write_block(bytes.substr(0, kWriterBlock), false);
      bytes.remove_prefix(kWriterBlock);
      continue;
    }
    const size_t some = kWriterBlock - block_.size();
    block_.append(bytes.substr(0, some));
    bytes.remove_prefix(some);
    write_block(block_, false);
    block_.clear();
  }
  block_.append(bytes);
}

void TfRecordWriter::write_block(std::string_view bytes, bool last) {
  if (deflation_) {
    deflation_->write(bytes, last, *file_);
  } else {
    file_->write(std::as_bytes(std::span(bytes)));
  }
}

}  // namespace muster
