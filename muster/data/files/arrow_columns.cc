#include "muster/data/files/arrow_columns.h"

#ifdef MUSTER_HAS_PARQUET

#include <arrow/array.h>
#include <arrow/buffer.h>
#include <arrow/extension/fixed_shape_tensor.h>
#include <arrow/type.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "muster/base/status.h"

namespace muster {
namespace {

const arrow::DataType& stored_type(const arrow::DataType& type) {
  if (type.id() != arrow::Type::EXTENSION) return type;
  return stored_type(*static_cast<const arrow::ExtensionType&>(type).storage_type());
}

std::shared_ptr<arrow::Array> stored(std::shared_ptr<arrow::Array> array) {
  while (array->type_id() == arrow::Type::EXTENSION) {
    array = static_cast<const arrow::ExtensionArray&>(*array).storage();
  }
  return array;
}

bool is_text(arrow::Type::type id) {
  return id == arrow::Type::STRING || id == arrow::Type::BINARY || id == arrow::Type::LARGE_STRING ||
         id == arrow::Type::LARGE_BINARY || id == arrow::Type::FIXED_SIZE_BINARY || id == arrow::Type::STRING_VIEW ||
         id == arrow::Type::BINARY_VIEW;
}

std::optional<PackedField::Type> number_type(arrow::Type::type id) {
  using Type = PackedField::Type;
  switch (id) {
    case arrow::Type::BOOL: return Type::kBool;
    case arrow::Type::UINT8: return Type::kUint8;
    case arrow::Type::INT8: return Type::kInt8;
    case arrow::Type::INT16: return Type::kInt16;
    case arrow::Type::UINT16:
    case arrow::Type::INT32: return Type::kInt32;
    case arrow::Type::UINT32:
    case arrow::Type::UINT64:
    case arrow::Type::INT64:
    case arrow::Type::DATE32:
    case arrow::Type::DATE64:
    case arrow::Type::TIME32:
    case arrow::Type::TIME64:
    case arrow::Type::DURATION:
    case arrow::Type::TIMESTAMP: return Type::kInt64;
    case arrow::Type::HALF_FLOAT: return Type::kHalf;
    case arrow::Type::FLOAT: return Type::kFloat;
    case arrow::Type::DOUBLE: return Type::kDouble;
    default: return std::nullopt;
  }
}

PackedField::Unit unit_of(const arrow::DataType& type) {
  using Unit = PackedField::Unit;
  auto named = [](arrow::TimeUnit::type unit) {
    switch (unit) {
      case arrow::TimeUnit::SECOND: return Unit::kSeconds;
      case arrow::TimeUnit::MILLI: return Unit::kMilliseconds;
      case arrow::TimeUnit::MICRO: return Unit::kMicroseconds;
      default: return Unit::kNanoseconds;
    }
  };
  switch (type.id()) {
    case arrow::Type::DATE32: return Unit::kDays;
    case arrow::Type::DATE64: return Unit::kMilliseconds;
    case arrow::Type::TIME32:
    case arrow::Type::TIME64: return named(static_cast<const arrow::TimeType&>(type).unit());
    case arrow::Type::DURATION: return named(static_cast<const arrow::DurationType&>(type).unit());
    case arrow::Type::TIMESTAMP: return named(static_cast<const arrow::TimestampType&>(type).unit());
    default: return Unit::kNone;
  }
}

// The bytes of each string; nothing where it is null. Offsets are looked at, since a file may come from a stranger.
template <class ArrayType>
void views_of_binary(const arrow::Array& any, std::vector<std::optional<std::string_view>>& views) {
  const auto& array = static_cast<const ArrayType&>(any);
  const std::shared_ptr<arrow::Buffer> data = array.value_data();
  const int64_t bytes = data ? data->size() : 0;
  for (int64_t i = 0; i < array.length(); ++i) {
    if (array.IsNull(i)) continue;
    const int64_t begin = array.value_offset(i), end = array.value_offset(i + 1);
    if (begin < 0 || end < begin || end > bytes) throw data_loss("string ", i, " is outside of what it has");
    views[static_cast<size_t>(i)] = array.GetView(i);
  }
}

void views_of_binary_views(const arrow::Array& any, std::vector<std::optional<std::string_view>>& views) {
  const auto& array = static_cast<const arrow::BinaryViewArray&>(any);
  const auto& buffers = array.data()->buffers;  // which bytes are there, the views, and what they look into
  const auto* at = array.data()->GetValues<arrow::BinaryViewType::c_type>(1);
  for (int64_t i = 0; i < array.length(); ++i) {
    if (array.IsNull(i)) continue;
    if (!at[i].is_inline()) {
      const int64_t number = int64_t{at[i].ref.buffer_index} + 2, begin = at[i].ref.offset;
      const bool inside = at[i].size() >= 0 && begin >= 0 && number >= 2 && number < std::ssize(buffers) &&
                          begin + at[i].size() <= buffers[static_cast<size_t>(number)]->size();
      if (!inside) throw data_loss("string ", i, " is outside of what it has");
    }
    views[static_cast<size_t>(i)] = array.GetView(i);
  }
}

std::vector<std::optional<std::string_view>> views_of(const arrow::Array& array) {
  std::vector<std::optional<std::string_view>> views(static_cast<size_t>(array.length()));
  switch (array.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY: views_of_binary<arrow::BinaryArray>(array, views); break;
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY: views_of_binary<arrow::LargeBinaryArray>(array, views); break;
    case arrow::Type::STRING_VIEW:
    case arrow::Type::BINARY_VIEW: views_of_binary_views(array, views); break;
    case arrow::Type::DICTIONARY: {
      const auto& numbers = static_cast<const arrow::DictionaryArray&>(array);
      const auto words = views_of(*numbers.dictionary());
      for (size_t i = 0; i < views.size(); ++i) {
        if (numbers.IsNull(static_cast<int64_t>(i))) continue;
        const int64_t number = numbers.GetValueIndex(static_cast<int64_t>(i));
        if (number < 0 || static_cast<size_t>(number) >= words.size()) {
          throw data_loss("word ", number, " of a dictionary of ", words.size());
        }
        views[i] = words[static_cast<size_t>(number)];
      }
      break;
    }
    default: {
      const auto& fixed = static_cast<const arrow::FixedSizeBinaryArray&>(array);
      for (size_t i = 0; i < views.size(); ++i) {
        if (!fixed.IsNull(static_cast<int64_t>(i))) views[i] = fixed.GetView(static_cast<int64_t>(i));
      }
    }
  }
  return views;
}

constexpr const char* kIsNull = "is null, and the column has no value otherwise (ParquetColumn::otherwise)";
constexpr const char* kIsTooLarge = "is too large for int64";

// Its bytes, to write to.
char* owned(ArrowNumbers& numbers, size_t bytes) {
  if (numbers.at != numbers.own.data() || numbers.own.empty()) {
    std::vector<char> copy(bytes);
    if (bytes > 0) std::memcpy(copy.data(), numbers.at, bytes);
    numbers.own = std::move(copy);
    numbers.at = numbers.own.data();
  }
  return numbers.own.data();
}

template <class From, class To>
void convert(const arrow::Array& array, ArrowNumbers& numbers) {
  const auto* from = array.data()->GetValues<From>(1);
  numbers.own.resize(static_cast<size_t>(array.length()) * sizeof(To));
  numbers.at = numbers.own.data();
  for (int64_t i = 0; i < array.length(); ++i) {
    const To to = static_cast<To>(from[i]);
    std::memcpy(numbers.own.data() + static_cast<size_t>(i) * sizeof to, &to, sizeof to);
    if constexpr (std::is_same_v<From, uint64_t>) {
      if (to < 0 && array.IsValid(i)) numbers.wrong.push_back({i, kIsTooLarge});
    }
  }
}

ArrowNumbers numbers_of(const arrow::Array& array, const PackedField& field) {
  ArrowNumbers numbers;
  if (array.length() == 0) return numbers;
  switch (array.type_id()) {
    case arrow::Type::BOOL:
      numbers.own.resize(static_cast<size_t>(array.length()));
      numbers.at = numbers.own.data();
      for (int64_t i = 0; i < array.length(); ++i) {
        numbers.own[static_cast<size_t>(i)] = static_cast<const arrow::BooleanArray&>(array).Value(i) ? 1 : 0;
      }
      break;
    case arrow::Type::UINT16: convert<uint16_t, int32_t>(array, numbers); break;
    case arrow::Type::UINT32: convert<uint32_t, int64_t>(array, numbers); break;
    case arrow::Type::UINT64: convert<uint64_t, int64_t>(array, numbers); break;
    case arrow::Type::DATE32:
    case arrow::Type::TIME32: convert<int32_t, int64_t>(array, numbers); break;
    default:
      numbers.at = reinterpret_cast<const char*>(array.data()->buffers[1]->data()) +
                   static_cast<size_t>(array.offset()) * field.value_bytes();
  }
  return numbers;
}

// `count` values of the numbers from each of these on, where an entry of `array` is null.
void replace_nulls(const arrow::Array& array, const PackedField& field, int64_t count, size_t all,
                   ArrowNumbers& numbers) {
  if (array.null_count() == 0) return;
  const std::string otherwise = field.otherwise ? field.otherwise_bytes() : "";
  for (int64_t i = 0; i < array.length(); ++i) {
    if (array.IsValid(i)) continue;
    if (!field.otherwise) {
      numbers.wrong.push_back({i * count, kIsNull});
      continue;
    }
    char* to = owned(numbers, all * field.value_bytes()) + static_cast<size_t>(i * count) * otherwise.size();
    for (int64_t k = 0; k < count; ++k, to += otherwise.size()) std::memcpy(to, otherwise.data(), otherwise.size());
  }
}

void decode_fixed(std::shared_ptr<arrow::Array> array, const PackedField& field, DecodedColumn& out) {
  const int64_t rows = array->length();
  int64_t values = 1;  // of a row
  for (const int64_t size : field.sizes) values *= size;
  std::vector<std::pair<std::shared_ptr<arrow::Array>, int64_t>> levels;  // with how many values each entry has
  int64_t entries = 1;                                                    // of a row
  while (array->type_id() == arrow::Type::FIXED_SIZE_LIST) {
    levels.emplace_back(array, entries == 0 ? 0 : values / entries);
    const auto& lists = static_cast<const arrow::FixedSizeListArray&>(*array);
    const int64_t size = lists.list_type()->list_size();
    array = stored(lists.values()->Slice(lists.value_offset(0), array->length() * size));
    entries *= size;
  }
  if (array->length() != rows * values) throw data_loss("lists with ", array->length(), " values in ", rows, " rows");
  levels.emplace_back(array, 1);
  out.array = array;
  out.numbers = numbers_of(*array, field);
  for (const auto& [level, count] : levels) {
    replace_nulls(*level, field, count, static_cast<size_t>(rows * values), out.numbers);
  }
  for (const WrongValue& wrong : out.numbers.wrong) {
    out.wrong.try_emplace(static_cast<size_t>(values == 0 ? 0 : wrong.number / values), wrong.why);
  }
}

template <class ListArray>
void decode_lists(const arrow::Array& any, const PackedField& field, DecodedColumn& out) {
  const auto& lists = static_cast<const ListArray&>(any);
  const int64_t begin = lists.value_offset(0), end = lists.value_offset(lists.length());
  if (begin < 0 || end < begin || end > lists.values()->length()) throw data_loss("lists outside of their values");
  out.array = stored(lists.values()->Slice(begin, end - begin));
  out.numbers = numbers_of(*out.array, field);
  replace_nulls(*out.array, field, 1, static_cast<size_t>(end - begin), out.numbers);
  std::ranges::sort(out.numbers.wrong, {}, &WrongValue::number);
  auto wrong = out.numbers.wrong.begin();
  const size_t bytes = field.value_bytes();
  out.views.resize(static_cast<size_t>(lists.length()));
  for (int64_t row = 0; row < lists.length(); ++row) {
    const int64_t first = lists.value_offset(row) - begin, last = lists.value_offset(row + 1) - begin;
    if (first < 0 || last < first || last > end - begin) throw data_loss("lists outside of their values");
    const auto number = static_cast<size_t>(row);
    if (lists.IsNull(row)) {
      if (!field.otherwise) out.wrong.try_emplace(number, kIsNull);
      continue;
    }
    out.views[number] = {out.numbers.at + static_cast<size_t>(first) * bytes,
                         static_cast<size_t>(last - first) * bytes};
    while (wrong != out.numbers.wrong.end() && wrong->number < first) ++wrong;
    if (wrong != out.numbers.wrong.end() && wrong->number < last) out.wrong.try_emplace(number, wrong->why);
  }
}

}  // namespace

std::optional<PackedField> packed_field(const std::string& name, const arrow::DataType& type) {
  const arrow::DataType* stored = &stored_type(type);
  PackedField field{.name = name, .type = PackedField::Type::kString};
  if (is_text(stored->id())) return field;
  if (stored->id() == arrow::Type::DICTIONARY &&
      is_text(static_cast<const arrow::DictionaryType&>(*stored).value_type()->id())) {
    return field;
  }
  if (stored->id() == arrow::Type::LIST || stored->id() == arrow::Type::LARGE_LIST) {
    field.varies = true;
    stored = &stored_type(*stored->field(0)->type());
  }
  while (!field.varies && stored->id() == arrow::Type::FIXED_SIZE_LIST) {
    field.sizes.push_back(static_cast<const arrow::FixedSizeListType&>(*stored).list_size());
    stored = &stored_type(*stored->field(0)->type());
  }
  if (const auto* tensors = dynamic_cast<const arrow::extension::FixedShapeTensorType*>(&type)) {
    if (!std::ranges::is_sorted(tensors->permutation())) return std::nullopt;
    field.sizes = tensors->shape();
  }
  const std::optional<PackedField::Type> number = number_type(stored->id());
  if (!number) return std::nullopt;
  field.type = *number;
  field.unit = unit_of(*stored);
  return field;
}

DecodedColumn decoded_column(std::shared_ptr<arrow::Array> array, const PackedField& field) {
  array = stored(std::move(array));
  DecodedColumn out;
  if (field.type == PackedField::Type::kString) {
    const auto views = views_of(*array);
    out.array = std::move(array);
    out.views.resize(views.size());
    for (size_t row = 0; row < views.size(); ++row) {
      if (views[row]) {
        out.views[row] = *views[row];
      } else if (field.otherwise) {
        out.views[row] = std::get<std::string>(*field.otherwise);
      } else {
        out.wrong.try_emplace(row, kIsNull);
      }
    }
  } else if (!field.varies) {
    decode_fixed(std::move(array), field, out);
  } else if (array->type_id() == arrow::Type::LIST) {
    decode_lists<arrow::ListArray>(*array, field, out);
  } else {
    decode_lists<arrow::LargeListArray>(*array, field, out);
  }
  for (size_t row = 0; row < out.views.size(); ++row) {
    if (out.views[row].size() > std::numeric_limits<PackedRows::Length>::max()) {
      out.wrong.try_emplace(row, "has more than 4 GiB");
      out.views[row] = {};
    }
  }
  return out;
}

}  // namespace muster

#endif
