#include "muster/graph/describe.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr size_t kMostText = 200;    // characters of a string
constexpr size_t kMostElements = 8;  // of a constant
constexpr size_t kMostInList = 32;   // elements of an argument

// The shortest decimal number that reads back as this one.
std::string shortest(double value) {
  char text[40];
  for (int digits = 6; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    double back = 0;
    if (std::sscanf(text, "%lf", &back) == 1 && back == value) break;
  }
  return text;
}

template <class T>
T read(const std::string& bytes, size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

// "" for an element type whose values are not shown.
std::string element(const Constant& constant, size_t index) {
  const std::string& bytes = *constant.bytes;
  switch (constant.spec.dtype) {
    case DType::kByte: return str_cat(static_cast<int>(read<uint8_t>(bytes, index)));
    case DType::kChar: return str_cat(static_cast<int>(read<int8_t>(bytes, index)));
    case DType::kShort: return str_cat(read<int16_t>(bytes, index));
    case DType::kInt: return str_cat(read<int32_t>(bytes, index));
    case DType::kLong: return str_cat(read<int64_t>(bytes, index));
    case DType::kBool: return read<uint8_t>(bytes, index) ? "true" : "false";
    case DType::kFloat: {
      char text[40];
      std::snprintf(text, sizeof text, "%.6g", static_cast<double>(read<float>(bytes, index)));
      return text;
    }
    case DType::kDouble: return shortest(read<double>(bytes, index));
    default: return "";
  }
}

void add_argument(std::string& out, const Argument& argument) {
  struct Writer {
    std::string& out;
    void operator()(None) const { out += "None"; }
    void operator()(Undefined) const { out += "undefined"; }
    void operator()(ValueRef ref) const { out += value_name(ref.id); }
    void operator()(int64_t value) const { str_append(out, value); }
    void operator()(double value) const {
      std::string text = shortest(value);
      // 1.0 must not look like the integer 1: ops take them for different types.
      out += text.find_first_of(".enai") == std::string::npos ? text + ".0" : text;
    }
    void operator()(bool value) const { out += value ? "true" : "false"; }
    void operator()(std::complex<double> value) const {
      str_append(out, "(", shortest(value.real()), ", ", shortest(value.imag()), "j)");
    }
    void operator()(const std::string& value) const { out += in_quotes(value); }
    void operator()(HereDevice) const { out += "here"; }
    void operator()(HereGenerator) const { out += "random"; }
    void operator()(const ArgumentList& list) const {
      out += "[";
      for (size_t i = 0; i < list.size(); ++i) {
        if (i == kMostInList) {
          str_append(out, ", … ", list.size() - i, " more");
          break;
        }
        if (i) out += ", ";
        add_argument(out, list[i]);
      }
      out += "]";
    }
  };
  std::visit(Writer{out}, argument.value);
}

}  // namespace

std::string first_few(const std::vector<std::string>& texts) {
  constexpr size_t kMost = 5;
  std::string text;
  for (size_t i = 0; i < std::min(texts.size(), kMost); ++i) str_append(text, i == 0 ? "" : ", ", texts[i]);
  if (texts.size() > kMost) str_append(text, " and ", texts.size() - kMost, " more");
  return text;
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (char c : text.substr(0, kMostText)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c >= 0x20 && c < 0x7f) {
      out += c;
    } else {
      char code[8];
      std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
      out += code;
    }
  }
  return out + (text.size() > kMostText ? "\"…" : "\"");
}

std::string value_name(ValueId value) { return value == kNoValue ? "_" : str_cat("%", value); }

std::string describe(const Constant& constant) {
  const int64_t count = constant.spec.elements();
  if (constant.is_number) return str_cat("number ", element(constant, 0), " (", name_of(constant.spec.dtype), ")");
  std::string text = constant.spec.to_string();
  if (count == 0 || count > static_cast<int64_t>(kMostElements) || element(constant, 0).empty()) return text;
  text += " = {";
  for (int64_t i = 0; i < count; ++i) str_append(text, i ? ", " : "", element(constant, static_cast<size_t>(i)));
  return text + "}";
}

std::string describe_results(const Instruction& instruction) {
  std::string out;
  for (size_t r = 0; r < instruction.results.size(); ++r) {
    const std::vector<ValueId>& values = instruction.results[r];
    if (r) out += ", ";
    if (values.size() == 1) {
      out += value_name(values[0]);
      continue;
    }
    out += "[";
    for (size_t i = 0; i < values.size(); ++i) {
      if (i == kMostInList) {
        str_append(out, ", … ", values.size() - i, " more");
        break;
      }
      str_append(out, i ? ", " : "", value_name(values[i]));
    }
    out += "]";
  }
  return out;
}

std::string describe_arguments(const Instruction& instruction, const OpSchema& schema) {
  std::string out;
  for (size_t i = 0; i < instruction.arguments.size(); ++i) {
    const Argument& argument = instruction.arguments[i];
    if (i) out += ", ";
    // A lone tensor is plain from its place; among several lists their names tell them apart.
    bool plain = std::holds_alternative<ValueRef>(argument.value);
    if (!plain && i < schema.arguments.size()) str_append(out, schema.arguments[i].name, "=");
    add_argument(out, argument);
  }
  return out;
}

std::string describe_settings(const Instruction& instruction, const OpSchema& schema) {
  Instruction plain;
  OpSchema names;
  for (size_t i = 0; i < instruction.arguments.size(); ++i) {
    const Argument& argument = instruction.arguments[i];
    bool has_value = false;
    for_each_value(argument, [&](ValueId) { has_value = true; });
    auto* list = std::get_if<ArgumentList>(&argument.value);
    if (has_value || std::holds_alternative<None>(argument.value) || (list && list->empty())) continue;
    plain.arguments.push_back(argument);
    names.arguments.push_back(schema.arguments[i]);
  }
  return describe_arguments(plain, names);
}

}  // namespace muster
