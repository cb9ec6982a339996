#include "muster/data/files/csv_parser.h"

#include <ATen/ops/empty.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <system_error>
#include <type_traits>
#include <utility>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little, "the first byte of a word is taken for its lowest");

constexpr size_t kBlockLines = 64;  // their text and the ends of their fields stay in the cache between the columns
constexpr size_t kShownFieldBytes = 40;
constexpr char kQuote = '"';

std::string shown_field(std::string_view field) {
  const bool long_field = field.size() > kShownFieldBytes;
  const std::string_view shown = field.substr(0, kShownFieldBytes);
  return str_cat("\"", absl::CHexEscape(absl::string_view(shown.data(), shown.size())), long_field ? "…\"" : "\"");
}

// The highest bit of each byte of `word` that is as in `pattern`, and no other bit.
uint64_t equal_bytes(uint64_t word, uint64_t pattern) {
  constexpr uint64_t kLow = 0x7f7f7f7f7f7f7f7f;
  const uint64_t other = word ^ pattern;
  return ~(((other & kLow) + kLow) | other | kLow);
}

// Says where each of `count` fields ends. False when the line has not so many.
// REQUIRES: no quote in the line, the separator is not 0.
bool split_plain_line(std::string_view line, char separator, uint32_t* ends, size_t count) {
  const uint64_t pattern = uint64_t{0x0101010101010101} * static_cast<uint8_t>(separator);
  uint32_t* const last = ends + count - 1;
  const auto found = [&](uint64_t word, size_t at) {
    for (uint64_t bits = equal_bytes(word, pattern); bits != 0; bits &= bits - 1) {
      if (ends == last) return false;
      *ends++ = static_cast<uint32_t>(at + static_cast<size_t>(std::countr_zero(bits)) / 8);
    }
    return true;
  };
  size_t at = 0;
  uint64_t word = 0;
  for (; line.size() - at >= sizeof(word); at += sizeof(word)) {
    std::memcpy(&word, line.data() + at, sizeof(word));
    if (!found(word, at)) return false;
  }
  if (at < line.size()) {
    word = 0;
    std::memcpy(&word, line.data() + at, line.size() - at);
    if (!found(word, at)) return false;
  }
  if (ends != last) return false;
  *ends = static_cast<uint32_t>(line.size());
  return true;
}

struct CsvFault {
  size_t field;
  std::string_view text;  // of the field, up to where it goes wrong
  const char* what;
};

// Calls next(end) for each field, quotes and all.
template <class Next>
std::optional<CsvFault> split_quoted_line(std::string_view line, char separator, const Next& next) {
  for (size_t begin = 0, field = 0;; ++field) {
    size_t end = begin;
    if (begin < line.size() && line[begin] == kQuote) {
      for (end = begin + 1;; end += 2) {
        end = line.find(kQuote, end);
        if (end == std::string_view::npos) return CsvFault{field, line.substr(begin), "the quote is not closed"};
        if (end + 1 == line.size() || line[end + 1] != kQuote) break;
      }
      ++end;
      if (end < line.size() && line[end] != separator) {
        return CsvFault{field, line.substr(begin, end + 1 - begin),
                        "text after the closing quote, expected the separator or the end of the line"};
      }
    } else {
      end = std::min(line.find(separator, begin), line.size());
      const std::string_view text = line.substr(begin, end - begin);
      if (text.find(kQuote) != std::string_view::npos) {
        return CsvFault{field, text, "a quote within a field that does not begin with one"};
      }
    }
    next(end);
    if (end == line.size()) return std::nullopt;
    begin = end + 1;
  }
}

// What stands between the quotes, if there are any; in `scratch` where two quotes mean one.
// REQUIRES: the quotes are right.
std::string_view unquoted_field(std::string_view field, std::string& scratch) {
  if (field.empty() || field.front() != kQuote) return field;
  field = field.substr(1, field.size() - 2);
  if (field.find(kQuote) == std::string_view::npos) return field;
  scratch.clear();
  for (size_t i = 0; i < field.size(); ++i) {
    scratch += field[i];
    if (field[i] == kQuote) ++i;
  }
  return scratch;
}

bool is_csv_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }
bool is_csv_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

constexpr double kTens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                            1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

// Plain decimals, such as -12.3456, exactly as std::from_chars reads them. False for all others, right or wrong.
template <class Float>
bool read_plain_float(std::string_view text, Float& value) {
  const char* at = text.data();
  const char* const end = at + text.size();
  const bool negative = at != end && *at == '-';
  at += negative;
  uint64_t digits = 0;
  const char* const begin = at;
  for (; at != end && is_csv_digit(*at); ++at) digits = digits * 10 + static_cast<uint64_t>(*at - '0');
  auto count = at - begin;
  ptrdiff_t fraction = 0;
  if (at != end && *at == '.') {
    const char* const point = at++;
    for (; at != end && is_csv_digit(*at); ++at) digits = digits * 10 + static_cast<uint64_t>(*at - '0');
    fraction = at - point - 1;
    count += fraction;
  }
  // 19 digits fit into 64 bits, so `digits` has not wrapped around.
  if (at != end || count == 0 || count > 19 || digits > uint64_t{1} << 53) return false;
  // Both numbers are exact, so the quotient is rounded once, and right (Clinger).
  double quotient = static_cast<double>(digits) / kTens[fraction];
  if constexpr (std::is_same_v<Float, float>) {
    // A second rounding is right, too, unless the first led exactly to the middle between two floats: the true quotient
    // may lie on either side. It is 0 or in 1e-19...1e16, where neither type is subnormal or infinite.
    constexpr uint64_t kBelowFloat = (uint64_t{1} << 29) - 1, kMiddle = uint64_t{1} << 28;
    if ((std::bit_cast<uint64_t>(quotient) & kBelowFloat) == kMiddle) return false;
  }
  value = static_cast<Float>(negative ? -quotient : quotient);
  return true;
}

enum class NumberFault { kNone, kNoNumber, kOutOfRange };

// Whether a number that std::from_chars finds out of range is too small rather than too large.
// REQUIRES: it has a digit that is not 0.
bool is_tiny(std::string_view number) {
  const size_t mark = std::min(number.find_first_of("eE"), number.size());
  int64_t exponent = 0;
  if (mark < number.size()) {
    std::string_view digits = number.substr(mark + 1);
    const bool negative = digits.starts_with('-');
    if (negative || digits.starts_with('+')) digits.remove_prefix(1);
    // More than the digits of any field could make up for.
    constexpr int64_t kEnough = int64_t{1} << 40;
    for (const char c : digits) exponent = std::min(exponent * 10 + (c - '0'), kEnough);
    if (negative) exponent = -exponent;
  }
  const std::string_view digits = number.substr(0, mark);
  const auto first = static_cast<int64_t>(digits.find_first_of("123456789"));
  const auto point = static_cast<int64_t>(std::min(digits.find('.'), digits.size()));
  return point - first + exponent <= 0;
}

template <class Number>
NumberFault read_number(std::string_view text, Number& value) {
  while (!text.empty() && is_csv_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_csv_blank(text.back())) text.remove_suffix(1);
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    if (text.starts_with('-')) return NumberFault::kNoNumber;
  }
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (stopped != end || error == std::errc::invalid_argument) return NumberFault::kNoNumber;
  if (error == std::errc()) return NumberFault::kNone;
  if constexpr (std::is_floating_point_v<Number>) {
    if (is_tiny(text)) {
      value = text.starts_with('-') ? Number{-0.0} : Number{0};
      return NumberFault::kNone;
    }
  }
  return NumberFault::kOutOfRange;
}

template <class Number>
bool read_plain_number(std::string_view text, Number& value) {
  if constexpr (std::is_floating_point_v<Number>) {
    return read_plain_float(text, value);
  } else {
    // What has fewer digits than the largest number is in its range.
    const size_t negative = text.starts_with('-') ? 1 : 0;
    const size_t count = text.size() - negative;
    if (count == 0 || count > std::numeric_limits<Number>::digits10) return false;
    Number digits = 0;
    for (const char c : text.substr(negative)) {
      if (!is_csv_digit(c)) return false;
      digits = digits * 10 + (c - '0');
    }
    value = negative ? -digits : digits;
    return true;
  }
}

std::string_view name_of_type(CsvColumn::Type type) {
  switch (type) {
    case CsvColumn::Type::kFloat: return "float32";
    case CsvColumn::Type::kDouble: return "float64";
    case CsvColumn::Type::kInt32: return "int32";
    case CsvColumn::Type::kInt64: return "int64";
    case CsvColumn::Type::kString: return "string";
  }
  return "none";
}

at::ScalarType scalar_type_of_csv(CsvColumn::Type type) {
  switch (type) {
    case CsvColumn::Type::kDouble: return at::kDouble;
    case CsvColumn::Type::kInt32: return at::kInt;
    case CsvColumn::Type::kInt64: return at::kLong;
    default: return at::kFloat;
  }
}

// REQUIRES: check_otherwise(column), and it has one.
template <class Number>
Number number_otherwise(const CsvColumn& column) {
  if (const auto* whole = std::get_if<int64_t>(&*column.otherwise)) return static_cast<Number>(*whole);
  return static_cast<Number>(std::get<double>(*column.otherwise));
}

void check_otherwise(const CsvColumn& column) {
  if (!column.otherwise) return;
  const auto fail = [&](const auto& value) {
    throw invalid_argument("CSV: column \"", column.name, "\": otherwise ", value, ", expected a value of ",
                           name_of_type(column.type));
  };
  const bool takes_string = column.type == CsvColumn::Type::kString;
  const bool takes_double = column.type == CsvColumn::Type::kFloat || column.type == CsvColumn::Type::kDouble;
  if (const auto* text = std::get_if<std::string>(&*column.otherwise)) {
    if (!takes_string) fail(shown_field(*text));
  } else if (const auto* number = std::get_if<double>(&*column.otherwise)) {
    const bool fits = column.type == CsvColumn::Type::kDouble || !std::isfinite(*number) ||
                      std::abs(*number) <= std::numeric_limits<float>::max();
    if (!takes_double || !fits) fail(*number);
  } else {
    const int64_t whole = std::get<int64_t>(*column.otherwise);
    if (takes_string || (column.type == CsvColumn::Type::kInt32 && !std::in_range<int32_t>(whole))) fail(whole);
  }
}

// Also says what else is wrong with the format.
std::vector<size_t> places_of(const CsvFormat& format) {
  if (format.columns.empty()) throw invalid_argument("CSV: no columns, expected those that are wanted");
  const char separator = format.separator;
  if ((format.quotes && separator == kQuote) || separator == '\n' || separator == '\r' || separator == '\0') {
    throw invalid_argument("CSV: separator ", shown_field({&separator, 1}),
                           ", expected a character that is no quote, line break or 0");
  }
  std::set<std::string_view> names;
  for (const std::string& name : format.header) {
    if (!names.insert(name).second) throw invalid_argument("CSV: the header has \"", name, "\" twice");
  }
  names.clear();
  std::vector<size_t> places;
  for (const CsvColumn& column : format.columns) {
    if (!names.insert(column.name).second) throw invalid_argument("CSV: column \"", column.name, "\" is there twice");
    check_otherwise(column);
    if (format.header.empty()) {
      places.push_back(places.size());
      continue;
    }
    const auto it = std::find(format.header.begin(), format.header.end(), column.name);
    if (it == format.header.end()) {
      throw invalid_argument("CSV: column \"", column.name, "\" is not in the header, which has ",
                             absl::StrJoin(format.header, ", "));
    }
    places.push_back(static_cast<size_t>(it - format.header.begin()));
  }
  return places;
}

// The work on one batch, block by block.
class CsvBatch {
 public:
  CsvBatch(const CsvFormat& format, const std::vector<size_t>& places, std::span<const std::string_view> lines,
           const std::function<std::string(size_t)>& where)
      : format_(format),
        places_(places),
        fields_(format.header.empty() ? format.columns.size() : format.header.size()),
        lines_(lines),
        where_(where),
        ends_(fields_ * std::min(lines.size(), kBlockLines)) {}

  Columns parse() {
    PlainTensors plain;
    for (const std::string_view line : lines_) all_bytes_ += line.size();
    std::vector<at::Tensor> tensors(places_.size());
    std::vector<Strings> strings(places_.size());
    for (size_t c = 0; c < places_.size(); ++c) {
      const CsvColumn::Type type = format_.columns[c].type;
      if (type == CsvColumn::Type::kString) continue;
      tensors[c] = at::empty({static_cast<int64_t>(lines_.size())}, at::TensorOptions(scalar_type_of_csv(type)));
    }
    for (begin_ = 0; begin_ < lines_.size(); begin_ = end_) {
      end_ = std::min(begin_ + kBlockLines, lines_.size());
      for (size_t i = begin_; i < end_; ++i) split(i);
      for (size_t c = 0; c < places_.size(); ++c) {
        switch (format_.columns[c].type) {
          case CsvColumn::Type::kFloat: fill(c, tensors[c].mutable_data_ptr<float>()); break;
          case CsvColumn::Type::kDouble: fill(c, tensors[c].mutable_data_ptr<double>()); break;
          case CsvColumn::Type::kInt32: fill(c, tensors[c].mutable_data_ptr<int32_t>()); break;
          case CsvColumn::Type::kInt64: fill(c, tensors[c].mutable_data_ptr<int64_t>()); break;
          case CsvColumn::Type::kString: fill(c, strings[c]); break;
        }
      }
    }
    Columns columns;
    columns.reserve(places_.size());
    for (size_t c = 0; c < places_.size(); ++c) {
      if (tensors[c].defined()) {
        columns.emplace_back(std::move(tensors[c]));
      } else {
        columns.emplace_back(std::move(strings[c]));
      }
    }
    return columns;
  }

 private:
  void split(size_t i) {
    const std::string_view line = lines_[i];
    if (line.size() >= std::numeric_limits<uint32_t>::max()) {
      throw invalid_argument(named(i), ": a line of ", line.size(), " bytes, expected fewer than ",
                             std::numeric_limits<uint32_t>::max());
    }
    uint32_t* const ends = ends_.data() + (i - begin_) * fields_;
    size_t count = 0;
    if (!format_.quotes || line.find(kQuote) == std::string_view::npos) {
      if (split_plain_line(line, format_.separator, ends, fields_)) return;
      count = 1 + static_cast<size_t>(std::count(line.begin(), line.end(), format_.separator));
    } else {
      const auto fault = split_quoted_line(line, format_.separator, [&](size_t end) {
        if (count++ < fields_) ends[count - 1] = static_cast<uint32_t>(end);
      });
      if (fault) {
        throw invalid_argument(named(i), ": ", field_named(fault->field), ": ", shown_field(fault->text), ": ",
                               fault->what);
      }
      if (count == fields_) return;
    }
    throw invalid_argument(named(i), ": ", count, count == 1 ? " field" : " fields", ", expected ", fields_, ": ",
                           shown_field(line));
  }

  // As it stands in line `i`; its quotes are right.
  std::string_view field(size_t i, size_t place) const {
    const uint32_t* const ends = ends_.data() + (i - begin_) * fields_ + place;
    const size_t begin = place == 0 ? 0 : ends[-1] + size_t{1};
    return {lines_[i].data() + begin, *ends - begin};
  }

  bool missing(std::string_view text) const { return text.empty() || text == format_.na_value; }

  template <class Number>
  void fill(size_t column, Number* numbers) {
    const std::string_view na = format_.na_value;
    for (size_t i = begin_; i < end_; ++i) {
      const std::string_view text = field(i, places_[column]);
      const bool plain = na.empty() || text != na;  // "-1" may stand for nothing
      if (!plain || !read_plain_number(text, numbers[i])) numbers[i] = number<Number>(column, i, text);
    }
  }

  template <class Number>
  Number number(size_t c, size_t i, std::string_view text) {
    const CsvColumn& column = format_.columns[c];
    if (format_.quotes) text = unquoted_field(text, scratch_);
    if (missing(text)) {
      check_may_miss(column, i, text);
      return number_otherwise<Number>(column);
    }
    Number value{};
    const NumberFault fault = read_number(text, value);
    if (fault != NumberFault::kNone) {
      const char* const wrong = fault == NumberFault::kOutOfRange ? " is out of range" : " is no number";
      throw invalid_argument(
          named(i), ": column \"", column.name, "\": ", shown_field(text), wrong, ", expected ",
          name_of_type(column.type),
          format_.guessed ? ", which the first lines look like; CsvOptions::columns can say another" : "");
    }
    return value;
  }

  void fill(size_t c, Strings& strings) {
    const CsvColumn& column = format_.columns[c];
    if (begin_ == 0) reserve(strings, places_[c]);
    for (size_t i = begin_; i < end_; ++i) {
      std::string_view text = field(i, places_[c]);
      if (format_.quotes) text = unquoted_field(text, scratch_);
      if (missing(text)) {
        check_may_miss(column, i, text);
        text = std::get<std::string>(*column.otherwise);
      }
      strings.append(text);
    }
  }

  // Takes the lines of the first block for what all others are like, within what there is.
  void reserve(Strings& strings, size_t place) const {
    size_t bytes = 0;
    for (size_t i = begin_; i < end_; ++i) bytes += field(i, place).size();
    const size_t blocks = (lines_.size() + kBlockLines - 1) / kBlockLines;
    strings.reserve(lines_.size(), blocks == 1 ? bytes : std::min(bytes * (blocks + 1), all_bytes_));
  }

  void check_may_miss(const CsvColumn& column, size_t i, std::string_view text) const {
    if (column.otherwise) return;
    throw invalid_argument(
        named(i), ": column \"", column.name,
        "\": ", text.empty() ? "an empty field" : str_cat(shown_field(text), ", which means that it is missing"),
        ", expected ", name_of_type(column.type), ", for the column has no value otherwise");
  }

  std::string named(size_t i) const { return where_ ? where_(i) : str_cat("CSV: line ", i + 1, " of the batch"); }

  std::string field_named(size_t place) const {
    if (place >= fields_) return str_cat("field ", place + 1, " of ", fields_);
    return str_cat("column \"", format_.header.empty() ? format_.columns[place].name : format_.header[place], "\"");
  }

  const CsvFormat& format_;
  const std::vector<size_t>& places_;
  const size_t fields_;  // of each line
  const std::span<const std::string_view> lines_;
  const std::function<std::string(size_t)>& where_;
  size_t all_bytes_ = 0;        // of the lines
  size_t begin_ = 0, end_ = 0;  // of the block among the lines
  std::vector<uint32_t> ends_;  // of the fields of each line of the block
  std::string scratch_;
};

}  // namespace

CsvParser::CsvParser(CsvFormat format) : format_(std::move(format)), places_(places_of(format_)) {}

std::vector<std::string> CsvParser::names() const {
  std::vector<std::string> names;
  for (const CsvColumn& column : format_.columns) names.push_back(column.name);
  return names;
}

Columns CsvParser::parse(std::span<const std::string_view> lines,
                         const std::function<std::string(size_t)>& where) const {
  return CsvBatch(format_, places_, lines, where).parse();
}

std::vector<std::string> csv_fields(std::string_view line, char separator, bool quotes) {
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  std::vector<std::string> fields;
  std::string scratch;
  size_t begin = 0;
  const auto next = [&](size_t end) {
    const std::string_view field = line.substr(begin, end - begin);
    fields.emplace_back(quotes ? unquoted_field(field, scratch) : field);
    begin = end + 1;
  };
  if (quotes) {
    if (const auto fault = split_quoted_line(line, separator, next)) {
      throw invalid_argument("CSV: header: field ", fault->field + 1, ": ", shown_field(fault->text), ": ",
                             fault->what);
    }
    return fields;
  }
  for (size_t end = line.find(separator); end != std::string_view::npos; end = line.find(separator, begin)) next(end);
  next(line.size());
  return fields;
}

}  // namespace muster
