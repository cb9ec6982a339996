#include "muster/data/files/record_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "muster/data/files/parquet_reader.h"
#include "muster/data/files/tfrecord_frame.h"

namespace muster {
namespace {

constexpr size_t kMaxLineBytes = 64 << 20;
constexpr int64_t kMaxFixedBytes = int64_t{1} << 30;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

template <class Number>
Number number_at(const char* bytes) {
  Number number;
  std::memcpy(&number, bytes, sizeof(number));
  return number;
}

class TfRecordReader final : public RecordReader {
 public:
  TfRecordReader(const std::string& path, const RecordFormat& format)
      : RecordReader(path, format.compression, "record", 0), growing_(format.growing) {}

  std::optional<std::string_view> next() override {
    if (ended_) return std::nullopt;
    const std::string_view bytes = whole_record();
    if (bytes.empty()) {
      ended_ = true;
      return std::nullopt;
    }
    number_ = upcoming_++;
    const size_t length = bytes.size() - kTfRecordHeadBytes - kTfRecordTailBytes;
    const std::string_view data = bytes.substr(kTfRecordHeadBytes, length);
    bytes_.take(bytes.size());
    if (number_at<uint32_t>(data.data() + length) != tfrecord_sum(data)) {
      throw data_loss(where(), ": its ", length, " bytes do not have the CRC that stands behind them");
    }
    return data;
  }

 private:
  // With what stands around it. Empty at the end of the file, and where a record of a file that grows is not whole.
  std::string_view whole_record() {
    std::string_view bytes = peek(kTfRecordHeadBytes);
    if (bytes.empty()) return bytes;
    if (bytes.size() < kTfRecordHeadBytes) {
      if (growing_) return {};
      throw last_error("the file ends after ", bytes.size(), " of the ", kTfRecordHeadBytes, " bytes before a record");
    }
    const auto length = number_at<uint64_t>(bytes.data());
    if (number_at<uint32_t>(bytes.data() + sizeof(length)) != tfrecord_sum(bytes.substr(0, sizeof(length)))) {
      const bool plain = bytes_.left().has_value();
      if (plain && upcoming_ == 0 && bytes.starts_with(kGzipBegins)) throw begins_as_gzip();
      throw last_error("its length does not have the CRC that stands behind it");
    }
    constexpr uint64_t kAround = kTfRecordHeadBytes + kTfRecordTailBytes;
    const std::optional<int64_t> left = bytes_.left();
    if (left && (static_cast<uint64_t>(*left) < kAround || length > static_cast<uint64_t>(*left) - kAround)) {
      if (growing_) return {};
      throw cut_short(length, static_cast<uint64_t>(*left));
    }
    if (!left && length > kMaxCompressedRecordBytes) {
      throw last_error("has ", length, " bytes, at most ", kMaxCompressedRecordBytes,
                       " are allowed in a compressed file");
    }
    if (bytes.size() < length + kAround) bytes = peek(length + kAround);
    if (bytes.size() < length + kAround) {
      if (growing_) return {};
      throw cut_short(length, bytes.size());
    }
    return bytes.substr(0, length + kAround);
  }

  Error cut_short(uint64_t length, uint64_t left) {
    return last_error("the file ends within it: ", length, " bytes and their CRC are to follow, it has ",
                      left - kTfRecordHeadBytes);
  }

  const bool growing_;
};

// Whether the number of double quotes is odd, eight bytes at a time.
bool odd_quotes(std::string_view text) {
  constexpr uint64_t kQuotes = 0x2222222222222222, kLow = 0x7F7F7F7F7F7F7F7F;
  uint64_t odd = 0;
  while (text.size() >= sizeof(odd)) {
    const uint64_t other = number_at<uint64_t>(text.data()) ^ kQuotes;  // a byte is 0 where a quote is
    odd ^= ~(((other & kLow) + kLow) | other | kLow);
    text.remove_prefix(sizeof(odd));
  }
  bool result = std::popcount(odd) % 2 != 0;
  for (char c : text) result ^= c == '"';
  return result;
}

class LineReader final : public RecordReader {
 public:
  LineReader(const std::string& path, const RecordFormat& format)
      : RecordReader(path, format.compression, "line", 1), quoted_(format.quoted), skip_(format.skip_lines) {}

  std::optional<std::string_view> next() override {
    if (ended_) return std::nullopt;
    if (!begun_) {
      const std::string_view begin = peek(kByteOrderMark.size());
      if (bytes_.left() && begin.starts_with(kGzipBegins)) throw begins_as_gzip();
      if (begin.starts_with(kByteOrderMark)) bytes_.take(kByteOrderMark.size());
      begun_ = true;
    }
    for (; skip_ > 0; --skip_) {
      if (!line()) return std::nullopt;
    }
    return line();
  }

 private:
  std::optional<std::string_view> line() {
    std::string_view text = peek(1);
    if (text.empty()) {
      ended_ = true;
      return std::nullopt;
    }
    size_t scanned = 0;
    int64_t breaks = 0;   // within quotes
    bool within = false;  // quotes
    while (true) {
      const auto* end = static_cast<const char*>(std::memchr(text.data() + scanned, '\n', text.size() - scanned));
      const size_t length = end != nullptr ? static_cast<size_t>(end - text.data()) : text.size();
      if (length > kMaxLineBytes) {
        throw last_error("has more than ", kMaxLineBytes, " bytes", within ? ", in quotes that are not closed" : "");
      }
      if (quoted_) within ^= odd_quotes(text.substr(scanned, length - scanned));
      if (end != nullptr && !within) {
        number_ = upcoming_;
        upcoming_ += breaks + 1;
        bytes_.take(length + 1);
        return text.substr(0, length - (length > 0 && end[-1] == '\r' ? 1 : 0));
      }
      if (end != nullptr) {
        ++breaks;
        scanned = length + 1;
        if (scanned < text.size()) continue;
      } else {
        scanned = length;
      }
      text = peek(scanned + 1);
      if (text.size() > scanned) continue;
      if (within) throw last_error("the file ends within quotes that it opens");
      number_ = upcoming_;
      ended_ = true;
      return text;
    }
  }

  const bool quoted_;
  int64_t skip_;
  bool begun_ = false;
};

class FixedRecordReader final : public RecordReader {
 public:
  FixedRecordReader(const std::string& path, const RecordFormat& format)
      : RecordReader(path, format.compression, "record", 0),
        header_(format.header_bytes),
        record_(static_cast<size_t>(format.record_bytes)),
        footer_(static_cast<size_t>(format.footer_bytes)) {
    const std::optional<int64_t> size = bytes_.left();
    if (!size) return;
    const int64_t around = header_ + format.footer_bytes;
    if (*size < around) {
      throw data_loss("file \"", path, "\": has ", *size, " bytes, the header of ", header_, " and the footer of ",
                      footer_, " alone have ", around);
    }
    if (const int64_t over = (*size - around) % format.record_bytes; over != 0) {
      throw data_loss("file \"", path, "\": ", over, " of its ", *size, " bytes are left over after a header of ",
                      header_, ", ", (*size - around) / format.record_bytes, " records of ", record_,
                      " and a footer of ", footer_);
    }
  }

  std::optional<std::string_view> next() override {
    if (ended_) return std::nullopt;
    while (bytes_.position() < header_) {
      const std::string_view some = peek(1);
      if (some.empty())
        throw last_error("the file ends after ", bytes_.position(), " bytes of its header of ", header_);
      bytes_.take(std::min(some.size(), static_cast<size_t>(header_ - bytes_.position())));
    }
    const std::string_view bytes = peek(record_ + footer_);
    if (bytes.size() < record_ + footer_) {
      if (bytes.size() != footer_) {
        throw last_error(bytes.size(), " bytes are left over, expected records of ", record_, " and a footer of ",
                         footer_);
      }
      ended_ = true;
      return std::nullopt;
    }
    number_ = upcoming_++;
    bytes_.take(record_);
    return bytes.substr(0, record_);
  }

 private:
  const int64_t header_;
  const size_t record_, footer_;
};

void check_range(const std::string& path, std::string_view field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  throw invalid_argument("file \"", path, "\": ", field, " of its format is ", value, ", expected ", least, " to ",
                         most);
}

}  // namespace

std::string RecordReader::where() const { return str_cat("file \"", path(), "\": ", unit_, " ", number_); }

std::string_view RecordReader::peek(size_t count) {
  try {
    return bytes_.peek(count);
  } catch (const Error& error) {
    if (error.code() != StatusCode::kDataLoss) throw;
    ended_ = true;
    number_ = upcoming_;
    throw data_loss(error.status().message(), " (in ", unit_, " ", number_, ")");
  }
}

std::unique_ptr<RecordReader> open_records(const std::string& path, const RecordFormat& format) {
  switch (format.kind) {
    case RecordFormat::Kind::kTfRecord: return std::make_unique<TfRecordReader>(path, format);
    case RecordFormat::Kind::kLines:
      check_range(path, "skip_lines", format.skip_lines, 0, std::numeric_limits<int64_t>::max());
      return std::make_unique<LineReader>(path, format);
    case RecordFormat::Kind::kFixed:
      check_range(path, "record_bytes", format.record_bytes, 1, kMaxFixedBytes);
      check_range(path, "header_bytes", format.header_bytes, 0, kMaxFixedBytes);
      check_range(path, "footer_bytes", format.footer_bytes, 0, kMaxFixedBytes);
      return std::make_unique<FixedRecordReader>(path, format);
    case RecordFormat::Kind::kParquet: return open_parquet(path, format.fields);
  }
  throw invalid_argument("file \"", path, "\": kind ", static_cast<int>(format.kind), " of records is not known");
}

}  // namespace muster
