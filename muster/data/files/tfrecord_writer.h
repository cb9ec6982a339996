#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "muster/data/files/compression.h"

namespace muster {

class OutputFile;

// A new TFRecord file, as TensorFlow reads it (with compression_type "", "GZIP" or "ZLIB").
// Invariant: without a successful close() the file is gone when this is destroyed.
// For one thread at a time.
class TfRecordWriter {
 public:
  // Throws Error{kAlreadyExists} rather than write to what is there.
  explicit TfRecordWriter(std::string path, Compression compression = Compression::kNone);
  ~TfRecordWriter();
  TfRecordWriter(const TfRecordWriter&) = delete;
  TfRecordWriter& operator=(const TfRecordWriter&) = delete;

  // Gathers records and writes them a block at a time. Throws what OutputFile throws; after that the file cannot be
  // finished any more. Throws Error{kInvalidArgument} for a record that is too large to be read, and leaves it out.
  void write(std::string_view record);
  // The file is whole, and on the disk. Nothing can be written then.
  void close();

  int64_t count() const { return count_; }  // of the records that were written
  const std::string& path() const;

 private:
  //   open --close()--> closed; a call that fails midway: broken
  enum class State { kOpen, kBroken, kClosed };
  struct Deflation;

  void put(std::string_view bytes);
  void write_block(std::string_view bytes, bool last);

  const std::unique_ptr<OutputFile> file_;
  const std::unique_ptr<Deflation> deflation_;  // null: not compressed
  std::string block_;                           // not written yet
  int64_t count_ = 0;
  State state_ = State::kOpen;
};

}  // namespace muster
