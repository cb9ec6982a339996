#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/data/files/byte_stream.h"
#include "muster/data/files/packed_rows.h"

namespace muster {

// Record after record of one file.
// Not thread-safe.
class RecordReader {
 public:
  virtual ~RecordReader() = default;
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;

  // Valid until the next call. Nothing after the last one.
  // Throws Error{kDataLoss} that names file, record (or line) and what is wrong. Where that concerns one record (a
  // wrong sum of its bytes), the next call goes on after it; where it leaves no way on (a wrong length, a file that was
  // cut short), there is nothing from then on. A call that failed because the disk was away may be repeated.
  virtual std::optional<std::string_view> next() = 0;

  // Many records at once, up to `most`, as columns that have a row for each: of files that hold whole columns. Else as
  // next().
  virtual std::optional<Columns> next_columns([[maybe_unused]] int64_t most) { return std::nullopt; }

  // Of the record that next() came to last, whether it gave it or said what is wrong with it. Records count from 0 and
  // lines from 1: with those that were skipped, and with line breaks within quotes; a record that has some has the
  // number of its first line.
  int64_t number() const { return number_; }
  // `file "a.tfrecord": record 17` or `file "a.csv": line 18`, for the errors of those who parse it.
  std::string where() const;
  const std::string& path() const { return bytes_.path(); }

 protected:
  RecordReader(const std::string& path, Compression compression, std::string_view unit, int64_t first)
      : bytes_(path, compression), unit_(unit), number_(first - 1), upcoming_(first) {}

  // As of the stream; an error says which record the bytes are for.
  std::string_view peek(size_t count);
  // Nothing comes after this error.
  template <class... Parts>
  [[nodiscard]] Error last_error(const Parts&... parts) {
    ended_ = true;
    number_ = upcoming_;
    return data_loss(where(), ": ", parts...);
  }

  // Of a file that nobody has said is compressed: text never begins so.
  static constexpr std::string_view kGzipBegins = "\x1F\x8B";
  [[nodiscard]] Error begins_as_gzip() {
    return last_error("the file begins as one does that gzip has compressed, expected ", unit_,
                      "s; FileOptions::compression says that it is Compression::kGzip");
  }

  ByteStream bytes_;
  const std::string_view unit_;  // "record", "line", "row"
  int64_t number_;
  int64_t upcoming_;  // the number of the record that begins where the stream stands
  bool ended_ = false;
};

struct RecordFormat {
  // TensorFlow's; text; records that all have the same number of bytes; rows of Parquet files, packed.
  enum class Kind { kTfRecord, kLines, kFixed, kParquet } kind;
  Compression compression = Compression::kNone;

  // kTfRecord: somebody is writing to the file, so that a last record that is not whole yet is none, and no error.
  bool growing = false;

  // kFixed: the file is a header, any number of records, and a footer. At most 1 GiB each, and a record at least a
  // byte.
  int64_t record_bytes = 0, header_bytes = 0, footer_bytes = 0;

  // kLines. They end with \n or \r\n, or the file; what is behind the last end is a line if it is not empty. A UTF-8
  // byte order mark at the beginning is skipped.
  int64_t skip_lines = 0;  // at the beginning
  bool quoted = false;     // a line break within "…" is part of the line, as in CSV (RFC 4180)

  // kParquet. Not compressed as a whole.
  std::vector<PackedField> fields{};
};

// Throws what InputFile throws, Error{kInvalidArgument} for a format that cannot be, and Error{kDataLoss} for a file
// that is no whole number of fixed records, if it is not compressed; if it is, next() does so at its end.
std::unique_ptr<RecordReader> open_records(const std::string& path, const RecordFormat& format);

}  // namespace muster
