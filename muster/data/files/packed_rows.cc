#include "muster/data/files/packed_rows.h"

#include <ATen/ops/empty.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "muster/base/status.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

using FieldType = PackedField::Type;

constexpr size_t kMostRowBytes = size_t{1} << 30, kMostDimensions = 64;

at::ScalarType scalar_type_of_field(FieldType type) {
  switch (type) {
    case FieldType::kBool: return at::kBool;
    case FieldType::kUint8: return at::kByte;
    case FieldType::kInt8: return at::kChar;
    case FieldType::kInt16: return at::kShort;
    case FieldType::kInt32: return at::kInt;
    case FieldType::kInt64: return at::kLong;
    case FieldType::kHalf: return at::kHalf;
    case FieldType::kFloat: return at::kFloat;
    default: return at::kDouble;
  }
}

const char* name_of_field_type(FieldType type) {
  switch (type) {
    case FieldType::kBool: return "bool";
    case FieldType::kUint8: return "uint8";
    case FieldType::kInt8: return "int8";
    case FieldType::kInt16: return "int16";
    case FieldType::kInt32: return "int32";
    case FieldType::kInt64: return "int64";
    case FieldType::kHalf: return "float16";
    case FieldType::kFloat: return "float32";
    case FieldType::kDouble: return "float64";
    default: return "string";
  }
}

const char* name_of_unit(PackedField::Unit unit) {
  switch (unit) {
    case PackedField::Unit::kDays: return " of days";
    case PackedField::Unit::kSeconds: return " of s";
    case PackedField::Unit::kMilliseconds: return " of ms";
    case PackedField::Unit::kMicroseconds: return " of us";
    case PackedField::Unit::kNanoseconds: return " of ns";
    default: return "";
  }
}

// Whether it is a value of the field, as it is.
bool can_be(const PackedField& field, const std::variant<double, int64_t, std::string>& value) {
  if (field.type == FieldType::kString) return std::holds_alternative<std::string>(value);
  const bool floats =
      field.type == FieldType::kHalf || field.type == FieldType::kFloat || field.type == FieldType::kDouble;
  if (const auto* real = std::get_if<double>(&value)) {
    // One that is finite stays so.
    double most = std::numeric_limits<double>::max();
    if (field.type == FieldType::kFloat) most = std::numeric_limits<float>::max();
    if (field.type == FieldType::kHalf) most = static_cast<float>(std::numeric_limits<c10::Half>::max());
    return floats && (!std::isfinite(*real) || std::abs(*real) <= most);
  }
  const auto* number = std::get_if<int64_t>(&value);
  if (number == nullptr) return false;
  if (floats) return can_be(field, static_cast<double>(*number));
  if (field.type == FieldType::kInt64) return true;
  if (field.type == FieldType::kBool) return *number == 0 || *number == 1;
  if (field.type == FieldType::kUint8) return *number >= 0 && *number <= 255;
  const int bits = static_cast<int>(8 * field.value_bytes()) - 1;
  return *number >= -(int64_t{1} << bits) && *number < (int64_t{1} << bits);
}

void check_field(const PackedField& field) {
  if (field.has_length() && !field.sizes.empty()) {
    throw invalid_argument("column \"", field.name, "\": ", field.to_string(), " cannot be in a row");
  }
  if (field.sizes.size() > kMostDimensions) {
    throw invalid_argument("column \"", field.name, "\": a row of ", field.sizes.size(),
                           " dimensions, expected at most ", kMostDimensions);
  }
  uint64_t bytes = field.value_bytes();
  for (const int64_t size : field.sizes) {
    // As if no dimension were 0: libtorch multiplies them all for the strides.
    const auto factor = static_cast<uint64_t>(std::max<int64_t>(size, 1));
    if (size < 0 || __builtin_mul_overflow(bytes, factor, &bytes) || bytes > kMostRowBytes) {
      throw invalid_argument("column \"", field.name, "\": a row of ", field.to_string(), ", expected at most ",
                             kMostRowBytes, " bytes");
    }
  }
  if (field.otherwise && !can_be(field, *field.otherwise)) {
    const std::string value = std::visit(
        []<class Value>(const Value& it) {
          if constexpr (std::is_same_v<Value, std::string>) return str_cat("\"", it.substr(0, 100), "\"");
          return str_cat(it);
        },
        *field.otherwise);
    const char* const kind = std::holds_alternative<double>(*field.otherwise) ? " (a double)" : "";
    throw invalid_argument("column \"", field.name, "\": its value otherwise is ", value, kind,
                           ", expected a value of ", name_of_field_type(field.type));
  }
}

// From each row, at a place of its own.
template <size_t kBytes>
void gather(std::span<const std::string_view> rows, size_t place, char* to) {
  for (const std::string_view row : rows) {
    std::memcpy(to, row.data() + place, kBytes);
    to += kBytes;
  }
}

void gather(std::span<const std::string_view> rows, size_t place, size_t bytes, char* to) {
  switch (bytes) {
    case 1: return gather<1>(rows, place, to);
    case 2: return gather<2>(rows, place, to);
    case 4: return gather<4>(rows, place, to);
    case 8: return gather<8>(rows, place, to);
    case 0: return;
    default:
      for (const std::string_view row : rows) {
        std::memcpy(to, row.data() + place, bytes);
        to += bytes;
      }
  }
}

at::Tensor tensor_of(const PackedField& field, size_t rows, std::vector<int64_t> sizes_of_row) {
  sizes_of_row.insert(sizes_of_row.begin(), static_cast<int64_t>(rows));
  return at::empty(sizes_of_row, at::TensorOptions(scalar_type_of_field(field.type)));
}

}  // namespace

size_t PackedField::value_bytes() const {
  return type == Type::kString ? 0 : c10::elementSize(scalar_type_of_field(type));
}

std::string PackedField::otherwise_bytes() const {
  if (type == Type::kString) return std::get<std::string>(*otherwise);
  const auto* const whole = std::get_if<int64_t>(&*otherwise);
  auto bytes_of = [&]<class Number>(Number) {
    const Number number =
        whole != nullptr ? static_cast<Number>(*whole) : static_cast<Number>(std::get<double>(*otherwise));
    return std::string(reinterpret_cast<const char*>(&number), sizeof number);
  };
  switch (type) {
    case Type::kBool:
    case Type::kUint8:
    case Type::kInt8: return bytes_of(int8_t{});
    case Type::kInt16: return bytes_of(int16_t{});
    case Type::kInt32: return bytes_of(int32_t{});
    case Type::kInt64: return bytes_of(int64_t{});
    case Type::kHalf: return bytes_of(c10::Half{});
    case Type::kFloat: return bytes_of(float{});
    default: return bytes_of(double{});
  }
}

std::string PackedField::to_string() const {
  return str_cat(varies ? "list of " : "", name_of_field_type(type),
                 sizes.empty() ? "" : str_cat("[", absl::StrJoin(sizes, ", "), "]"), name_of_unit(unit));
}

bool PackedField::is_like(const PackedField& other) const {
  return name == other.name && type == other.type && sizes == other.sizes && varies == other.varies &&
         unit == other.unit;
}

PackedRows::PackedRows(std::vector<PackedField> fields) : fields_(std::move(fields)) {
  if (fields_.empty()) throw invalid_argument("rows without columns, expected at least one");
  std::set<std::string_view> names;
  for (const PackedField& field : fields_) {
    if (!names.insert(field.name).second) throw invalid_argument("column \"", field.name, "\" is wanted twice");
    check_field(field);
    size_t bytes = field.value_bytes();
    for (const int64_t size : field.sizes) bytes *= static_cast<size_t>(size);
    places_.push_back(fixed_bytes_);
    bytes_.push_back(bytes);
    if (!field.has_length()) fixed_bytes_ += bytes;
    if (fixed_bytes_ > kMostRowBytes) {
      throw invalid_argument("column \"", field.name, "\": rows of more than ", kMostRowBytes, " bytes");
    }
  }
}

std::vector<std::string> PackedRows::names() const {
  std::vector<std::string> names;
  for (const PackedField& field : fields_) names.push_back(field.name);
  return names;
}

at::Tensor PackedRows::tensor(size_t field, const char* values, size_t rows) const {
  const PlainTensors plain;
  const MemoryPool::Use pool(true);
  at::Tensor tensor = tensor_of(fields_[field], rows, fields_[field].sizes);
  if (tensor.nbytes() > 0) std::memcpy(tensor.mutable_data_ptr(), values, tensor.nbytes());
  return tensor;
}

Columns PackedRows::parse(std::span<const std::string_view> rows,
                          const std::function<std::string(size_t)>& where) const {
  const PlainTensors plain;
  const MemoryPool::Use pool(true);
  auto row_name = [&](size_t i) { return where ? where(i) : str_cat("row ", i); };
  auto no_row = [&](size_t i) { return data_loss(row_name(i), ": its ", rows[i].size(), " bytes are no row"); };
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].size() < fixed_bytes_) throw no_row(i);
  }
  std::vector<size_t> at(rows.size(), fixed_bytes_);  // of each row, where the next field with a length begins
  auto next_field = [&](size_t i) {
    Length length = 0;
    if (rows[i].size() - at[i] < sizeof length) throw no_row(i);
    std::memcpy(&length, rows[i].data() + at[i], sizeof length);
    at[i] += sizeof length;
    if (rows[i].size() - at[i] < length) throw no_row(i);
    at[i] += length;
    return rows[i].substr(at[i] - length, length);
  };
  Columns columns;
  columns.reserve(fields_.size());
  for (size_t f = 0; f < fields_.size(); ++f) {
    const PackedField& field = fields_[f];
    if (field.type == PackedField::Type::kString) {
      Strings strings;
      strings.reserve(rows.size(), 0);
      for (size_t i = 0; i < rows.size(); ++i) strings.append(next_field(i));
      columns.emplace_back(std::move(strings));
    } else if (field.varies) {
      at::Tensor tensor;
      size_t first_length = 0;
      for (size_t i = 0; i < rows.size(); ++i) {
        const std::string_view values = next_field(i);
        if (values.size() % field.value_bytes() != 0) throw no_row(i);
        if (i == 0) {
          first_length = values.size();
          tensor = tensor_of(field, rows.size(), {static_cast<int64_t>(first_length / field.value_bytes())});
        }
        if (values.size() != first_length) {
          throw invalid_argument(row_name(i), ": column \"", field.name, "\" has ", values.size() / field.value_bytes(),
                                 " values, but the first row of its batch has ", first_length / field.value_bytes(),
                                 "; expected as many, which padded_batch makes of them");
        }
        if (first_length > 0) {
          std::memcpy(static_cast<char*>(tensor.mutable_data_ptr()) + i * first_length, values.data(), first_length);
        }
      }
      columns.emplace_back(rows.empty() ? tensor_of(field, 0, {0}) : std::move(tensor));
    } else {
      at::Tensor tensor = tensor_of(field, rows.size(), field.sizes);
      auto* const values = static_cast<char*>(tensor.mutable_data_ptr());
      gather(rows, places_[f], bytes_[f], values);
      if (field.type == PackedField::Type::kBool) {  // whoever has written them
        for (size_t i = 0; i < tensor.nbytes(); ++i) values[i] = values[i] != 0;
      }
      columns.emplace_back(std::move(tensor));
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (at[i] != rows[i].size()) throw no_row(i);
  }
  return columns;
}

}  // namespace muster
