#include "muster/io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/io/crc32c.h"
#include "muster/io/disk.h"
#include "muster/io/json_words.h"

namespace muster {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the data of a file is little-endian, and is not converted");

constexpr std::string_view kMetadata = "__metadata__";
constexpr int64_t kLengthBytes = 8;
constexpr size_t kPieceBytes = 256 << 10;  // stays in the cache between its sum and its copy

constexpr std::pair<DType, std::string_view> kTypes[] = {
    {DType::kByte, "U8"},   {DType::kChar, "I8"},       {DType::kShort, "I16"},        {DType::kInt, "I32"},
    {DType::kLong, "I64"},  {DType::kHalf, "F16"},      {DType::kFloat, "F32"},        {DType::kDouble, "F64"},
    {DType::kBool, "BOOL"}, {DType::kBFloat16, "BF16"}, {DType::kComplexFloat, "C64"},
};
constexpr std::pair<DType, std::string_view> kForeignTypes[] = {
    {DType::kShort, "U16"},    {DType::kInt, "U32"},      {DType::kLong, "U64"},
    {DType::kByte, "F8_E4M3"}, {DType::kByte, "F8_E5M2"},
};

std::string in_quotes(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    throw invalid_argument("safetensors: expected a text in UTF-8, got ",
                           json(text).dump(-1, ' ', true, json::error_handler_t::replace));
  }
}

// The format allows them, but who takes a name for a C string takes another one.
bool has_nul(std::string_view name) { return name.find('\0') != std::string_view::npos; }

// The length and the header, filled up with spaces so that the data begins at a multiple of 8, or of a block if there
// is much of it (disk.h).
std::string header_of(const std::vector<NamedSpec>& tensors, const std::map<std::string, std::string>& metadata) {
  std::string text(kLengthBytes, '\0');
  text += '{';
  if (!metadata.empty()) {
    str_append(text, "\"", kMetadata, "\":{");
    const char* comma = "";
    for (const auto& [key, value] : metadata)
      str_append(text, std::exchange(comma, ","), in_quotes(key), ":", in_quotes(value));
    text += '}';
  }
  std::set<std::string_view> names;
  int64_t offset = 0;
  for (const auto& [name, spec, foreign_type] : tensors) {
    if (name == kMetadata || !names.insert(name).second) {
      throw invalid_argument("safetensors: tensor \"", name,
                             "\": ", name == kMetadata ? "the format keeps this name" : "there are two of this name");
    }
    if (has_nul(name)) throw invalid_argument("safetensors: tensor ", in_quotes(name), ": a name with a NUL");
    if (!foreign_type.empty() && as_large_as(foreign_type) != spec.dtype) {
      throw invalid_argument("safetensors: tensor \"", name, "\": elements of type \"", foreign_type,
                             "\" are not stored as ", name_of(spec.dtype));
    }
    const auto type = foreign_type.empty() ? safetensors_name(spec.dtype) : std::optional(foreign_type);
    if (!type) {
      throw Error(Status(StatusCode::kUnimplemented,
                         str_cat("safetensors: tensor \"", name, "\": the format has no ", name_of(spec.dtype))));
    }
    const auto bytes = checked_bytes(spec);
    int64_t end = 0;
    if (!bytes || __builtin_add_overflow(offset, *bytes, &end)) {
      throw invalid_argument("safetensors: tensor \"", name, "\": ", spec.to_string(), " has no size in bytes");
    }
    str_append(text, text.size() > kLengthBytes + 1 ? "," : "", in_quotes(name), ":{\"dtype\":\"", *type,
               "\",\"shape\":", json(spec.sizes).dump(), ",\"data_offsets\":[", offset, ",", end, "]}");
    offset = end;
  }
  text += '}';
  constexpr int64_t kMuch = 1 << 20;
  const size_t unit = offset < kMuch ? 8 : disk::kBlock;
  text.resize((text.size() + unit - 1) / unit * unit, ' ');
  const uint64_t length = text.size() - kLengthBytes;
  if (length > SafetensorsFile::kMaxHeaderBytes) {
    throw invalid_argument("safetensors: the header of ", tensors.size(), " tensors has ", length,
                           " bytes, the format allows ", SafetensorsFile::kMaxHeaderBytes);
  }
  std::memcpy(text.data(), &length, sizeof(length));
  return text;
}

// `about` names file and tensor.
std::vector<int64_t> integers_of(const json& tensor, const char* field, const std::string& about) {
  const auto list = tensor.find(field);
  const auto fits = [](const json& value) {
    return value.is_number_unsigned() && value.get<uint64_t>() <= std::numeric_limits<int64_t>::max();
  };
  if (list == tensor.end() || !list->is_array() || !std::all_of(list->begin(), list->end(), fits)) {
    throw data_loss(about, ": expected a list of whole numbers as ", field);
  }
  return list->get<std::vector<int64_t>>();
}

// The format forbids a key twice, and readers differ in which of two they take.
class KeysOnce {
 public:
  explicit KeysOnce(std::string file) : file_(std::move(file)) {}

  void begin_object(int depth) { keys_of(depth + 1).clear(); }
  void key(int depth, const std::string& key) {
    if (depth == 1) of_tensor_ = key;
    if (keys_of(depth).insert(key).second) return;
    const std::string whose = str_cat(file_, of_tensor_ == kMetadata ? ": " : ": tensor ", in_quotes(of_tensor_));
    if (depth == 1) throw data_loss(whose, " is in the header twice");
    throw data_loss(whose, ": ", in_quotes(key), " is there twice");
  }

 private:
  std::set<std::string>& keys_of(int depth) {
    keys_.resize(std::max(keys_.size(), static_cast<size_t>(depth) + 1));
    return keys_[static_cast<size_t>(depth)];
  }

  const std::string file_;
  std::string of_tensor_;
  std::vector<std::set<std::string>> keys_;  // of the object that is open at each depth
};

json parse_header(std::string_view text, const std::string& path) {
  KeysOnce keys(str_cat("file \"", path, "\""));
  // A header is four deep. Without the limit, one of a hundred million brackets costs gigabytes.
  const auto shallow = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > 4) throw data_loss("file \"", path, "\": the header has too many levels");
    if (event == json::parse_event_t::object_start) keys.begin_object(depth);
    if (event == json::parse_event_t::key) keys.key(depth, parsed.get_ref<const std::string&>());
    return true;
  };
  if (!text.starts_with('{')) throw data_loss("file \"", path, "\": the header does not begin with {");
  json header;
  try {
    header = json::parse(text, shallow);
  } catch (const json::exception& error) {
    throw data_loss("file \"", path, "\": the header is ", json_words(error, text.size()));
  }
  return header;
}

}  // namespace

std::optional<std::string_view> safetensors_name(DType dtype) {
  for (const auto& [ours, name] : kTypes) {
    if (ours == dtype) return name;
  }
  return std::nullopt;
}

std::optional<DType> dtype_from_safetensors(std::string_view name) {
  for (const auto& [dtype, theirs] : kTypes) {
    if (theirs == name) return dtype;
  }
  return std::nullopt;
}

std::optional<DType> as_large_as(std::string_view foreign_type) {
  for (const auto& [dtype, theirs] : kForeignTypes) {
    if (theirs == foreign_type) return dtype;
  }
  return std::nullopt;
}

std::optional<int64_t> checked_bytes(const TensorSpec& spec) {
  int64_t bytes = bytes_per_element(spec.dtype);
  bool empty = false;
  for (int64_t size : spec.sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) return std::nullopt;
    empty = empty || size == 0;
  }
  return empty ? 0 : bytes;
}

SafetensorsWriter::SafetensorsWriter(std::string path, std::vector<NamedSpec> tensors,
                                     std::map<std::string, std::string> metadata, OutputFile::Cache cache)
    : tensors_(std::move(tensors)), file_(std::move(path), cache) {
  const std::string header = header_of(tensors_, metadata);
  file_.write(std::as_bytes(std::span(header)));
}

uint32_t SafetensorsWriter::write(std::string_view name, std::span<const std::byte> bytes) {
  if (next_ < tensors_.size() && static_cast<int64_t>(bytes.size()) != tensors_[next_].spec.bytes()) {
    const TensorSpec& spec = tensors_[next_].spec;
    throw invalid_argument("file \"", file_.path(), "\": tensor \"", name, "\": ", bytes.size(), " bytes, but ",
                           spec.to_string(), " has ", spec.bytes());
  }
  return write_pieces(name, [bytes](int64_t offset) { return bytes.subspan(static_cast<size_t>(offset)); });
}

uint32_t SafetensorsWriter::write_pieces(std::string_view name, const TensorPieces& pieces) {
  if (next_ == tensors_.size() || tensors_[next_].name != name) {
    throw invalid_argument(
        "file \"", file_.path(), "\": tensor \"", name, "\": expected ",
        next_ == tensors_.size() ? "no more tensors" : str_cat("\"", tensors_[next_].name, "\" next"));
  }
  const int64_t size = tensors_[next_].spec.bytes();
  uint32_t crc = 0;
  for (int64_t at = 0; at < size;) {
    std::span<const std::byte> bytes = pieces(at);
    MUSTER_CHECK(!bytes.empty() && static_cast<int64_t>(bytes.size()) <= size - at) << "tensor " << name;
    at += static_cast<int64_t>(bytes.size());
    while (!bytes.empty()) {
      const auto piece = bytes.first(std::min(bytes.size(), kPieceBytes));
      crc = crc32c(piece, crc);
      file_.write(piece);
      bytes = bytes.subspan(piece.size());
    }
  }
  ++next_;
  return crc;
}

void SafetensorsWriter::finish() {
  if (next_ != tensors_.size()) {
    throw failed_precondition("file \"", file_.path(), "\": tensor \"", tensors_[next_].name, "\" was not written");
  }
  file_.finish();
}

SafetensorsFile::SafetensorsFile(std::string path, InputFile::Links links) : file_(std::move(path), links) {
  const std::string where = str_cat("file \"", this->path(), "\"");
  uint64_t length = 0;
  if (file_.size() < kLengthBytes) throw data_loss(where, ": ", file_.size(), " bytes are no safetensors file");
  file_.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (std::string_view(reinterpret_cast<const char*>(&length), 4) == "PK\x03\x04") {
    throw data_loss(where,
                    " is a zip archive, as torch.save writes them, and no safetensors file; PyTorch writes one "
                    "with safetensors.torch.save_file");
  }
  if (length > kMaxHeaderBytes) {
    throw data_loss(where, " is no safetensors file, or damaged: it would have a header of ", length,
                    " bytes, at most ", kMaxHeaderBytes, " are allowed");
  }
  if (static_cast<int64_t>(length) > file_.size() - kLengthBytes) {
    throw data_loss(where, ": a header of ", length, " bytes in a file of ", file_.size());
  }
  data_begin_ = kLengthBytes + static_cast<int64_t>(length);
  std::string text(length, '\0');
  file_.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  const json header = parse_header(text, this->path());

  for (const auto& [name, value] : header.items()) {
    if (has_nul(name)) throw data_loss(where, ": tensor ", in_quotes(name), ": a name with a NUL");
    const std::string about = str_cat(where, ": tensor \"", name, "\"");
    if (!value.is_object()) throw data_loss(about, ": expected an object");
    if (name == kMetadata) {
      for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) throw data_loss(where, ": metadata \"", key, "\": expected a text");
        metadata_.emplace(key, text.get<std::string>());
      }
      continue;
    }
    const auto type = value.find("dtype");
    if (type == value.end() || !type->is_string()) throw data_loss(about, ": expected a text as dtype");
    const auto& type_name = type->get_ref<const std::string&>();
    const auto foreign =
        std::ranges::find(kForeignTypes, std::string_view(type_name), [](const auto& known) { return known.second; });
    const bool is_foreign = foreign != std::end(kForeignTypes);
    const auto dtype = is_foreign ? std::optional(foreign->first) : dtype_from_safetensors(type_name);
    if (!dtype) {
      throw Error(
          Status(StatusCode::kUnimplemented, str_cat(about, ": element type \"", type_name, "\" is not known")));
    }
    TensorSpec spec{*dtype, integers_of(value, "shape", about)};
    const auto offsets = integers_of(value, "data_offsets", about);
    const auto size = checked_bytes(spec);
    if (!size || offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] - offsets[0] != *size) {
      throw data_loss(about, ": data_offsets ", json(offsets).dump(), " do not fit ",
                      is_foreign ? str_cat(type_name, json(spec.sizes).dump()) : spec.to_string());
    }
    tensors_.emplace(name, Tensor{std::move(spec), is_foreign ? foreign->second : "", offsets[0], offsets[1]});
  }

  int64_t end = 0;
  for (const auto& it : by_place()) {
    const auto& [name, tensor] = *it;
    if (tensor.begin != end) {
      throw data_loss(where, ": tensor \"", name, "\": begins at ", tensor.begin, ", the one before ends at ", end);
    }
    end = tensor.end;
  }
  if (const int64_t data = file_.size() - data_begin_; end != data) {
    throw data_loss(where, ": ", data, " bytes of data, the tensors have ", end);
  }
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  for (const auto& it : by_place()) names.push_back(it->first);
  return names;
}

const TensorSpec& SafetensorsFile::spec(std::string_view name) const {
  const Tensor& tensor = find(name)->second;
  if (tensor.foreign_type.empty()) return tensor.spec;
  throw Error(
      Status(StatusCode::kUnimplemented, str_cat("file \"", path(), "\": tensor \"", name, "\": element type \"",
                                                 tensor.foreign_type, "\" cannot be part of a program")));
}

std::string_view SafetensorsFile::foreign_type(std::string_view name) const { return find(name)->second.foreign_type; }

const TensorSpec& SafetensorsFile::stored_spec(std::string_view name) const { return find(name)->second.spec; }

std::vector<std::byte> SafetensorsFile::bytes(std::string_view name) const {
  const Tensor& tensor = find(name)->second;
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.end - tensor.begin));
  read(name, 0, bytes);
  return bytes;
}

void SafetensorsFile::read(std::string_view name, int64_t offset, std::span<std::byte> out) const {
  file_.read_once(place_of(name, offset, out.size()), out);
}

size_t SafetensorsFile::read_some(std::string_view name, int64_t offset, std::span<std::byte> out) const {
  return file_.read_some(place_of(name, offset, out.size()), out);
}

int64_t SafetensorsFile::place_of(std::string_view name, int64_t offset, size_t bytes) const {
  const Tensor& tensor = find(name)->second;
  const int64_t size = tensor.end - tensor.begin, wanted = static_cast<int64_t>(bytes);
  if (offset < 0 || wanted > size || offset > size - wanted) {
    throw out_of_range("file \"", path(), "\": tensor \"", name, "\": ", wanted, " bytes from ", offset,
                       " on are not in its ", size);
  }
  return data_begin_ + tensor.begin + offset;
}

SafetensorsFile::Tensors::const_iterator SafetensorsFile::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) throw not_found("file \"", path(), "\": tensor \"", name, "\": there is none");
  return it;
}

std::vector<SafetensorsFile::Tensors::const_iterator> SafetensorsFile::by_place() const {
  std::vector<Tensors::const_iterator> sorted;
  for (auto it = tensors_.begin(); it != tensors_.end(); ++it) sorted.push_back(it);
  // An empty tensor stands at the place where the next one begins, hence both ends. Stable, for two empty ones.
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::tie(a->second.begin, a->second.end) < std::tie(b->second.begin, b->second.end);
  });
  return sorted;
}

}  // namespace muster
