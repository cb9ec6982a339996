#include "muster/data/files/numpy_file.h"

#include <ATen/ops/empty.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_join.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>

#include "muster/base/status.h"
#include "muster/io/input_file.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little, "zip archives and most arrays are little-endian");

constexpr std::string_view kNpyMagic = "\x93NUMPY";
constexpr uint64_t kMaxNpyHeaderBytes = 1 << 20;
constexpr size_t kMaxNpyDimensions = 64;  // as many as numpy has
constexpr size_t kShownDescrBytes = 100;
constexpr size_t kNumpyPieceBytes = 1 << 18;  // stays in the cache between its read and its sum

// `where` begins each message: `file "a.npz": entry "w.npy"`.
Error numpy_unimplemented(const std::string& where, const std::string& what) {
  return Error(Status(StatusCode::kUnimplemented, str_cat(where, ": ", what)));
}

std::string shown_bytes(std::string_view text) {
  const std::string_view shown = text.substr(0, kShownDescrBytes);
  return str_cat(absl::CHexEscape(absl::string_view(shown.data(), shown.size())),
                 text.size() > kShownDescrBytes ? "…" : "");
}

// The bytes of one .npy, wherever they lie, one after the other.
class NpyBytes {
 public:
  NpyBytes(const InputFile& file, std::string where, uint64_t size)
      : file_(file), where_(std::move(where)), size_(size), left_(size) {}
  virtual ~NpyBytes() = default;
  NpyBytes(const NpyBytes&) = delete;
  NpyBytes& operator=(const NpyBytes&) = delete;

  const std::string& where() const { return where_; }
  uint64_t left() const { return left_; }

  void read(std::span<std::byte> out) {
    if (out.size() > left_) throw data_loss(where_, ": ends after ", size_, " bytes, within its header");
    left_ -= out.size();
    while (!out.empty()) {
      const auto piece = out.first(std::min(out.size(), kNumpyPieceBytes));
      next(piece);
      sum_ = static_cast<uint32_t>(crc32_z(sum_, reinterpret_cast<const Bytef*>(piece.data()), piece.size()));
      out = out.subspan(piece.size());
    }
  }
  // REQUIRES: nothing is left. Throws Error{kDataLoss} if they were not what they should be.
  virtual void finish() = 0;

 protected:
  virtual void next(std::span<std::byte> out) = 0;

  void check_sum(uint32_t expected) const {
    if (sum_ == expected) return;
    throw data_loss(where_, ": CRC-32 ", absl::Hex(sum_, absl::kZeroPad8), ", expected ",
                    absl::Hex(expected, absl::kZeroPad8));
  }

  const InputFile& file_;
  const std::string where_;

 private:
  const uint64_t size_;
  uint64_t left_;
  uint32_t sum_ = 0;
};

class StoredNpyBytes final : public NpyBytes {
 public:
  StoredNpyBytes(const InputFile& file, std::string where, uint64_t offset, uint64_t size, std::optional<uint32_t> sum)
      : NpyBytes(file, std::move(where), size), offset_(offset), sum_(sum) {}

  void finish() override {
    if (sum_) check_sum(*sum_);
  }

 private:
  void next(std::span<std::byte> out) override {
    file_.read(static_cast<int64_t>(offset_), out);
    offset_ += out.size();
  }

  uint64_t offset_;
  const std::optional<uint32_t> sum_;  // a .npy has none
};

class DeflatedNpyBytes final : public NpyBytes {
 public:
  DeflatedNpyBytes(const InputFile& file, std::string where, uint64_t offset, uint64_t packed, uint64_t size,
                   uint32_t sum)
      : NpyBytes(file, std::move(where), size),
        offset_(offset),
        packed_(packed),
        sum_(sum),
        input_(std::min<uint64_t>(packed, kNumpyPieceBytes)) {
    // No wrapper around the data: zip has its own.
    if (inflateInit2(&stream_, -MAX_WBITS) != Z_OK) throw resource_exhausted(where_, ": no memory to inflate it");
  }
  ~DeflatedNpyBytes() override { inflateEnd(&stream_); }

  void finish() override {
    // One byte more, so that data that goes on is found.
    std::byte more;
    if (inflate_into({&more, 1}) != 0) throw data_loss(where_, ": has more data than the archive says");
    if (!ended_ || packed_ != 0 || stream_.avail_in != 0) {
      throw data_loss(where_, ": the deflated data ends elsewhere than the archive says");
    }
    check_sum(sum_);
  }

 private:
  void next(std::span<std::byte> out) override {
    const size_t got = inflate_into(out);
    if (got != out.size()) throw data_loss(where_, ": has less data than the archive says");
  }

  // REQUIRES: out.size() fits into 32 bits.
  size_t inflate_into(std::span<std::byte> out) {
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<uInt>(out.size());
    while (stream_.avail_out != 0 && !ended_) {
      if (stream_.avail_in == 0 && packed_ != 0) {
        const auto piece = std::span(input_).first(std::min<uint64_t>(packed_, input_.size()));
        file_.read(static_cast<int64_t>(offset_), piece);
        offset_ += piece.size();
        packed_ -= piece.size();
        stream_.next_in = reinterpret_cast<Bytef*>(piece.data());
        stream_.avail_in = static_cast<uInt>(piece.size());
      }
      const int result = inflate(&stream_, Z_NO_FLUSH);
      if (result == Z_BUF_ERROR) break;  // it has no more input
      if (result == Z_MEM_ERROR) throw resource_exhausted(where_, ": no memory to inflate it");
      if (result != Z_OK && result != Z_STREAM_END) {
        throw data_loss(where_, ": is no deflated data: ", stream_.msg != nullptr ? stream_.msg : "wrong bytes");
      }
      ended_ = result == Z_STREAM_END;
    }
    return out.size() - stream_.avail_out;
  }

  uint64_t offset_;
  uint64_t packed_;  // bytes in the file that were not read yet
  const uint32_t sum_;
  std::vector<std::byte> input_;
  z_stream stream_{};
  bool ended_ = false;
};

struct NpyType {
  at::ScalarType type;
  size_t bytes;          // of an element
  size_t swapped_bytes;  // of what is reversed where the order of bytes is the other; 1: nothing
};

struct NpyHeader {
  std::optional<NpyType> type{};
  std::optional<bool> fortran_order{};
  std::optional<std::vector<int64_t>> sizes{};
};

// Nothing for a type that tensors do not have.
std::optional<NpyType> npy_type(std::string_view descr) {
  if (descr.size() != 3 && descr.size() != 4) return std::nullopt;
  struct Known {
    std::string_view name;
    at::ScalarType type;
    uint8_t bytes, part;
  };
  static constexpr Known kKnown[] = {
      {"b1", at::kBool, 1, 1},         {"i1", at::kChar, 1, 1},
      {"u1", at::kByte, 1, 1},         {"i2", at::kShort, 2, 2},
      {"i4", at::kInt, 4, 4},          {"i8", at::kLong, 8, 8},
      {"u2", at::kUInt16, 2, 2},       {"u4", at::kUInt32, 4, 4},
      {"u8", at::kUInt64, 8, 8},       {"f2", at::kHalf, 2, 2},
      {"f4", at::kFloat, 4, 4},        {"f8", at::kDouble, 8, 8},
      {"c8", at::kComplexFloat, 8, 4}, {"c16", at::kComplexDouble, 16, 8},
  };
  const char order = descr.front();
  for (const Known& known : kKnown) {
    if (descr.substr(1) != known.name) continue;
    // "|" says that the order of bytes does not matter, "=" that it is the machine's own.
    if (order != '<' && order != '>' && order != '=' && (order != '|' || known.bytes != 1)) return std::nullopt;
    return NpyType{known.type, known.bytes, order == '>' ? known.part : size_t{1}};
  }
  return std::nullopt;
}

// Reads the header's text: a dict of Python with the three keys in any order. Nothing else that Python would
// understand is understood here.
class NpyHeaderParser {
 public:
  NpyHeaderParser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  NpyHeader parse() {
    NpyHeader header;
    expect('{');
    while (!accept('}')) {
      const std::string_view key = in_quotes("a key");
      expect(':');
      if (key == "descr" && !header.type) {
        header.type = type();
      } else if (key == "fortran_order" && !header.fortran_order) {
        header.fortran_order = boolean();
      } else if (key == "shape" && !header.sizes) {
        header.sizes = sizes();
      } else {
        throw wrong(str_cat("key '", shown_bytes(key), "', expected descr, fortran_order and shape, once each"));
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    skip_blanks();
    if (at_ != text_.size()) throw wrong("text after the closing }");
    if (!header.type || !header.fortran_order || !header.sizes) {
      throw wrong("expected descr, fortran_order and shape");
    }
    return header;
  }

 private:
  NpyType type() {
    skip_blanks();
    const std::string_view rest = text_.substr(at_);
    if (rest.starts_with('[')) {  // a list of fields
      throw numpy_unimplemented(where_,
                                str_cat("dtype ", shown_bytes(rest.substr(0, rest.find(']'))), "], a structure"));
    }
    const std::string_view descr = in_quotes("a dtype");
    if (const auto found = npy_type(descr)) return *found;
    const bool objects = descr.find('O') != std::string_view::npos;
    throw numpy_unimplemented(
        where_, str_cat("dtype '", shown_bytes(descr), "'", objects ? ": pickled objects are not read" : "",
                        ", expected bool, integers, floats of 2 to 8 bytes or complex numbers of 8 or 16"));
  }

  bool boolean() {
    skip_blanks();
    for (const auto& [word, value] : {std::pair<std::string_view, bool>{"True", true}, {"False", false}}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return value;
    }
    throw wrong("fortran_order is neither True nor False");
  }

  std::vector<int64_t> sizes() {
    std::vector<int64_t> sizes;
    expect('(');
    bool comma = true;
    while (!accept(')')) {
      if (!comma) throw wrong("shape: expected a comma");
      skip_blanks();
      int64_t size = -1;
      const char* const begin = text_.data() + at_;
      const auto [stopped, error] = std::from_chars(begin, text_.data() + text_.size(), size);
      if (error != std::errc() || size < 0 || *begin == '-') {
        throw wrong("shape: expected whole numbers up to 2^63 - 1");
      }
      at_ += static_cast<size_t>(stopped - begin);
      sizes.push_back(size);
      if (sizes.size() > kMaxNpyDimensions) {
        throw wrong(str_cat("shape: more than ", kMaxNpyDimensions, " dimensions"));
      }
      comma = accept(',');
    }
    // In Python, (3) is a number.
    if (sizes.size() == 1 && !comma) throw wrong("shape: expected a comma");
    return sizes;
  }

  std::string_view in_quotes(const char* what) {
    skip_blanks();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    const size_t end = quote == '\'' || quote == '"' ? text_.find(quote, at_ + 1) : std::string_view::npos;
    if (end == std::string_view::npos) throw wrong(str_cat("expected ", what, " in quotes"));
    const std::string_view found = text_.substr(at_ + 1, end - at_ - 1);
    if (found.find('\\') != std::string_view::npos) throw wrong(str_cat("expected ", what, " without escapes"));
    at_ = end + 1;
    return found;
  }

  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t')) ++at_;
  }
  bool accept(char c) {
    skip_blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) throw wrong(str_cat("expected ", std::string_view(&c, 1)));
  }
  Error wrong(const std::string& what) const { return data_loss(where_, ": header: at byte ", at_, ": ", what); }

  const std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
};

NpyHeader read_npy_header(NpyBytes& bytes) {
  std::string magic(8, '\0');
  if (bytes.left() < magic.size()) throw data_loss(bytes.where(), ": ", bytes.left(), " bytes are no numpy array");
  bytes.read(std::as_writable_bytes(std::span(magic)));
  if (!magic.starts_with(kNpyMagic)) throw data_loss(bytes.where(), ": does not begin as a numpy array does");
  const auto major = static_cast<uint8_t>(magic[6]), minor = static_cast<uint8_t>(magic[7]);
  if (major < 1 || major > 3 || minor != 0) {
    throw numpy_unimplemented(bytes.where(), str_cat("format ", major, ".", minor, ", expected 1.0, 2.0 or 3.0"));
  }
  uint32_t length = 0;
  bytes.read(std::as_writable_bytes(std::span(&length, 1)).first(major == 1 ? 2 : 4));
  if (length > bytes.left() || length > kMaxNpyHeaderBytes) {
    throw data_loss(bytes.where(), ": a header of ", length, " bytes, expected no more than the ",
                    std::min(bytes.left(), kMaxNpyHeaderBytes), " that can be");
  }
  std::string text(length, '\0');
  bytes.read(std::as_writable_bytes(std::span(text)));
  return NpyHeaderParser(text, bytes.where()).parse();
}

// Nothing when the product is too large, also where another size is 0: strides are products, too.
std::optional<uint64_t> npy_data_bytes(const NpyHeader& header) {
  auto bytes = static_cast<int64_t>(header.type->bytes);
  bool empty = false;
  for (const int64_t size : *header.sizes) {
    if (__builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) return std::nullopt;
    empty = empty || size == 0;
  }
  return empty ? 0 : static_cast<uint64_t>(bytes);
}

at::Tensor read_array(NpyBytes& bytes) {
  PlainTensors plain;
  const NpyHeader header = read_npy_header(bytes);
  const auto size = npy_data_bytes(header);
  if (!size || *size != bytes.left()) {
    throw data_loss(bytes.where(), ": ", bytes.left(), " bytes of data, expected ",
                    size ? std::to_string(*size) : "more than there can be", " for shape [",
                    absl::StrJoin(*header.sizes, ", "), "] of ", header.type->bytes, "-byte elements");
  }
  std::vector<int64_t> sizes = *header.sizes;
  if (*header.fortran_order) std::reverse(sizes.begin(), sizes.end());
  at::Tensor tensor = at::empty(sizes, at::TensorOptions(header.type->type));
  const std::span<std::byte> data(static_cast<std::byte*>(tensor.mutable_data_ptr()), *size);
  bytes.read(data);
  bytes.finish();
  if (const size_t part = header.type->swapped_bytes; part > 1) {
    for (size_t at = 0; at < data.size(); at += part) std::reverse(&data[at], &data[at] + part);
  }
  if (header.type->type == at::kBool) {
    // C++ has no bool that is neither 0 nor 1.
    for (std::byte& value : data) value = static_cast<std::byte>(value != std::byte{0});
  }
  if (!*header.fortran_order || sizes.size() < 2) return tensor;
  std::vector<int64_t> order(sizes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(order.size() - 1 - i);
  return tensor.permute(order).contiguous();
}

template <class Number>
Number number_at(std::string_view bytes, size_t at) {
  Number number;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

// Reads the list of files at the end of a zip archive.
class NpzDirectory {
 public:
  struct Entry {
    std::string name;
    uint16_t method;
    uint32_t sum;
    uint64_t packed, size;
    uint64_t offset;  // of its own header; from open() on: of its data
  };

  explicit NpzDirectory(const InputFile& file)
      : file_(file), where_(str_cat("file \"", file.path(), "\"")), file_bytes_(static_cast<uint64_t>(file.size())) {
    const auto [count, size, offset] = find();
    std::string list = text(offset, size);
    std::string_view rest = list;
    for (uint64_t i = 0; i < count; ++i) entries_.push_back(entry(rest, offset));
    if (!rest.empty()) throw data_loss(where_, ": more than the ", count, " entries that the archive says it has");
    check_apart(offset);
  }

  const std::vector<Entry>& entries() const { return entries_; }

  std::unique_ptr<NpyBytes> open(const Entry& entry) const {
    if (entry.method == 0) {
      return std::make_unique<StoredNpyBytes>(file_, named(entry.name), entry.offset, entry.size, entry.sum);
    }
    return std::make_unique<DeflatedNpyBytes>(file_, named(entry.name), entry.offset, entry.packed, entry.size,
                                              entry.sum);
  }

  std::string named(std::string_view name) const { return str_cat(where_, ": entry \"", shown_bytes(name), "\""); }

 private:
  static constexpr uint64_t kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
  static constexpr uint64_t kEntryBytes = 46, kLocalBytes = 30;
  static constexpr std::string_view kEndMagic{"PK\5\6"}, kEnd64Magic{"PK\6\6"}, kLocator64Magic{"PK\6\7"};
  static constexpr std::string_view kEntryMagic{"PK\1\2"}, kLocalMagic{"PK\3\4"};
  static constexpr uint32_t kIn64 = 0xffffffff;  // the number stands in a field of 64 bits elsewhere

  struct Place {
    uint64_t count, size, offset;
  };

  std::string text(uint64_t offset, uint64_t size) const {
    if (size > file_bytes_ || offset > file_bytes_ - size) {
      throw data_loss(where_, ": ", size, " bytes from ", offset, " on, but the file has ", file_bytes_);
    }
    std::string bytes(size, '\0');
    file_.read(static_cast<int64_t>(offset), std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }

  // The end record stands before a comment of unknown length.
  Place find() const {
    const uint64_t tail_bytes = std::min<uint64_t>(file_bytes_, kEndBytes + 0xffff);
    const std::string tail = text(file_bytes_ - tail_bytes, tail_bytes);
    const std::string_view view = tail;
    for (size_t at = view.rfind(kEndMagic); at != std::string_view::npos;
         at = at == 0 ? std::string_view::npos : view.rfind(kEndMagic, at - 1)) {
      if (view.size() - at < kEndBytes) continue;
      if (number_at<uint16_t>(view, at + 20) != view.size() - at - kEndBytes) continue;
      return place(view.substr(at, kEndBytes), file_bytes_ - tail_bytes + at);
    }
    throw data_loss(where_, ": is no zip archive, as .npz files are, or lacks its end");
  }

  Place place(std::string_view end, uint64_t end_offset) const {
    Place found{number_at<uint16_t>(end, 10), number_at<uint32_t>(end, 12), number_at<uint32_t>(end, 16)};
    const bool parts = number_at<uint16_t>(end, 4) != number_at<uint16_t>(end, 6) ||
                       number_at<uint16_t>(end, 8) != number_at<uint16_t>(end, 10);
    if (parts) throw numpy_unimplemented(where_, "an archive of several parts");
    uint64_t limit = end_offset;
    const bool wide = found.count == 0xffff || found.size == kIn64 || found.offset == kIn64;
    const std::string locator =
        end_offset >= kLocator64Bytes ? text(end_offset - kLocator64Bytes, kLocator64Bytes) : "";
    if (wide && locator.starts_with(kLocator64Magic)) {
      limit = number_at<uint64_t>(locator, 8);
      const std::string end64 = text(limit, kEnd64Bytes);
      if (!end64.starts_with(kEnd64Magic)) throw data_loss(where_, ": lacks its zip64 end record");
      found = {number_at<uint64_t>(end64, 32), number_at<uint64_t>(end64, 40), number_at<uint64_t>(end64, 48)};
    }
    if (found.size > limit || found.offset > limit - found.size || found.count > found.size / kEntryBytes) {
      throw data_loss(where_, ": a list of ", found.count, " entries in ", found.size, " bytes from ", found.offset,
                      " on does not fit before its end at ", limit);
    }
    return found;
  }

  // Takes the first entry from the list.
  Entry entry(std::string_view& list, uint64_t list_offset) const {
    if (list.size() < kEntryBytes || !list.starts_with(kEntryMagic)) {
      throw data_loss(where_, ": entry ", entries_.size() + 1, " of the archive's list is damaged");
    }
    const uint16_t flags = number_at<uint16_t>(list, 8);
    const size_t name_bytes = number_at<uint16_t>(list, 28), extra_bytes = number_at<uint16_t>(list, 30);
    const size_t comment_bytes = number_at<uint16_t>(list, 32);
    const size_t entry_bytes = kEntryBytes + name_bytes + extra_bytes + comment_bytes;
    if (list.size() < entry_bytes) {
      throw data_loss(where_, ": entry ", entries_.size() + 1, " goes beyond the archive's list");
    }
    Entry entry{.name = std::string(list.substr(kEntryBytes, name_bytes)),
                .method = number_at<uint16_t>(list, 10),
                .sum = number_at<uint32_t>(list, 16),
                .packed = number_at<uint32_t>(list, 20),
                .size = number_at<uint32_t>(list, 24),
                .offset = number_at<uint32_t>(list, 42)};
    widen(entry, list.substr(kEntryBytes + name_bytes, extra_bytes));
    list.remove_prefix(entry_bytes);

    if ((flags & 1) != 0) throw numpy_unimplemented(named(entry.name), "is encrypted");
    if (entry.method != 0 && entry.method != 8) {
      throw numpy_unimplemented(named(entry.name),
                                str_cat("is packed by method ", entry.method, ", expected 0 (stored) or 8 (deflated)"));
    }
    // Deflate makes data at most 1032 times as small.
    const bool possible = entry.method == 0 ? entry.packed == entry.size : entry.size / 1032 <= entry.packed;
    if (!possible) {
      throw data_loss(named(entry.name), ": ", entry.size, " bytes cannot be in the ", entry.packed, " of the archive");
    }
    if (list_offset < kLocalBytes || entry.offset > list_offset - kLocalBytes) {
      throw data_loss(named(entry.name), ": begins at ", entry.offset, ", within the archive's list");
    }
    const std::string local = text(entry.offset, kLocalBytes);
    const uint64_t local_bytes = kLocalBytes + number_at<uint16_t>(local, 26) + number_at<uint16_t>(local, 28);
    if (!local.starts_with(kLocalMagic) || number_at<uint16_t>(local, 26) != name_bytes ||
        text(entry.offset + kLocalBytes, name_bytes) != entry.name) {
      throw data_loss(named(entry.name), ": there is no entry of this name at ", entry.offset);
    }
    entry.offset += local_bytes;
    return entry;
  }

  // What does not fit into 32 bits stands in the extra field with the tag 1, in this order.
  void widen(Entry& entry, std::string_view extra) const {
    while (extra.size() >= 4) {
      const uint16_t tag = number_at<uint16_t>(extra, 0);
      std::string_view field = extra.substr(4);
      if (number_at<uint16_t>(extra, 2) > field.size()) break;
      field = field.substr(0, number_at<uint16_t>(extra, 2));
      extra.remove_prefix(4 + field.size());
      if (tag != 1) continue;
      for (uint64_t* const number : {&entry.size, &entry.packed, &entry.offset}) {
        if (*number != kIn64) continue;
        if (field.size() < sizeof(*number)) throw data_loss(named(entry.name), ": its zip64 field is too short");
        *number = number_at<uint64_t>(field, 0);
        field.remove_prefix(sizeof(*number));
      }
      return;
    }
  }

  // Entries that share their data would make a small file fill the memory.
  void check_apart(uint64_t list_offset) const {
    std::vector<const Entry*> sorted;
    for (const Entry& entry : entries_) sorted.push_back(&entry);
    std::sort(sorted.begin(), sorted.end(), [](const Entry* a, const Entry* b) { return a->offset < b->offset; });
    for (size_t i = 0; i < sorted.size(); ++i) {
      const uint64_t limit = i + 1 < sorted.size() ? sorted[i + 1]->offset : list_offset;
      if (sorted[i]->offset > limit || sorted[i]->packed > limit - sorted[i]->offset) {
        throw data_loss(named(sorted[i]->name), ": its ", sorted[i]->packed, " bytes from ", sorted[i]->offset,
                        " on go beyond ", limit, ", where something else begins");
      }
    }
  }

  const InputFile& file_;
  const std::string where_;
  const uint64_t file_bytes_;
  std::vector<Entry> entries_;
};

}  // namespace

at::Tensor read_npy(const std::string& path) {
  const InputFile file(path);
  StoredNpyBytes bytes(file, str_cat("file \"", path, "\""), 0, static_cast<uint64_t>(file.size()), std::nullopt);
  return read_array(bytes);
}

std::vector<std::pair<std::string, at::Tensor>> read_npz(const std::string& path) {
  constexpr std::string_view kSuffix = ".npy";
  const InputFile file(path);
  const NpzDirectory directory(file);
  std::vector<std::pair<std::string, at::Tensor>> arrays;
  std::set<std::string_view> names;
  for (const auto& entry : directory.entries()) {
    std::string_view name = entry.name;
    if (name.ends_with(kSuffix)) name.remove_suffix(kSuffix.size());
    if (!names.insert(name).second) throw data_loss(directory.named(entry.name), ": the name is there twice");
    arrays.emplace_back(name, read_array(*directory.open(entry)));
  }
  return arrays;
}

}  // namespace muster
