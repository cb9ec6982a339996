#include "muster/runtime/ops/guard_expression.h"

#include <ATen/core/function_schema.h>

#include <charconv>

#include "muster/base/status.h"

namespace muster::op_guards_internal {
namespace {

int64_t size_at(c10::IntArrayRef sizes, int64_t index, std::string_view text) {
  const auto count = static_cast<int64_t>(sizes.size());
  if (index < 0) index += count;
  if (index < 0 || index >= count) throw invalid_argument(text, " does not exist: there are ", count);
  return sizes[index];
}

bool number(std::string_view text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

int64_t last_of(const c10::IValue& value, std::string_view text) {
  if (value.isInt()) return value.toInt();
  const std::vector<int64_t> list = value.toIntVector();
  return size_at(list, -1, text);
}

}  // namespace

std::optional<size_t> position_of(std::string_view argument, const c10::FunctionSchema& schema) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() == argument) return i;
  }
  return std::nullopt;
}

bool is_given(const c10::IValue& value) {
  return !value.isNone() && !(value.isTensor() && !value.toTensor().defined());
}

bool is_tensor(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  const auto inside = type->containedTypes();
  return std::any_of(inside.begin(), inside.end(), is_tensor);
}

Expression::Expression(std::string_view text, const c10::FunctionSchema& schema) : text_(text) {
  char op = '+';
  while (!text.empty()) {
    const size_t end = text.find(' ');
    terms_.push_back(term(text.substr(0, end), op, schema));
    if (end == std::string_view::npos) break;
    op = text[end + 1];
    text.remove_prefix(end + 3);
  }
}

bool Expression::fits(std::string_view text, const c10::FunctionSchema& schema) {
  bool all = true;
  const Expression parsed(text, schema);
  for (const Term& term : parsed.terms_) all = all && term.known;
  return all;
}

bool Expression::given(const Stack& stack) const {
  return std::all_of(terms_.begin(), terms_.end(),
                     [&](const Term& term) { return term.kind == Kind::kNumber || is_given(stack[term.position]); });
}

int64_t Expression::value(const Stack& stack) const {
  int64_t result = 0;
  for (const Term& term : terms_) {
    const int64_t other = value_of(term, stack);
    bool overflow = false;
    if (term.op == '+') overflow = __builtin_add_overflow(result, other, &result);
    if (term.op == '-') overflow = __builtin_sub_overflow(result, other, &result);
    if (term.op == '*') overflow = __builtin_mul_overflow(result, other, &result);
    if (term.op == '/') {
      if (other == 0 || other == -1) throw invalid_argument(text_, " divides by ", other);
      result /= other;
    }
    if (overflow) throw invalid_argument(text_, " is too large");
  }
  return result;
}

bool Expression::plain(const c10::FunctionSchema& schema) const {
  return std::none_of(terms_.begin(), terms_.end(), [&](const Term& term) {
    return term.kind != Kind::kNumber && is_tensor(schema.arguments()[term.position].real_type());
  });
}

bool Expression::looks_at_elements() const {
  return std::any_of(terms_.begin(), terms_.end(),
                     [](const Term& term) { return term.kind == Kind::kMost || term.kind == Kind::kSum; });
}

Expression::Term Expression::term(std::string_view text, char op, const c10::FunctionSchema& schema) {
  Term term{.op = op, .text = std::string(text)};
  if (number(text, term.number)) return term;
  term.kind = Kind::kWhole;
  if (const size_t open = text.find_first_of("[("); open != std::string_view::npos) {
    const std::string_view inside = text.substr(open + 1, text.size() - open - 2), outside = text.substr(0, open);
    if (text[open] == '[') {
      term.kind = Kind::kAt;
      if (!number(inside, term.number)) {
        term.index = position_of(inside, schema);
        term.known = term.index.has_value();
      }
      text = outside;
    } else {
      term.kind = outside == "rank"  ? Kind::kRank
                  : outside == "len" ? Kind::kLength
                  : outside == "max" ? Kind::kMost
                                     : Kind::kSum;
      text = inside;
    }
  }
  const std::optional<size_t> position = position_of(text, schema);
  term.known = term.known && position.has_value();
  term.position = position.value_or(0);
  return term;
}

int64_t Expression::value_of(const Term& term, const Stack& stack) {
  if (term.kind == Kind::kNumber) return term.number;
  const c10::IValue& value = stack[term.position];
  switch (term.kind) {
    case Kind::kAt: {
      const int64_t index = term.index ? last_of(stack[*term.index], term.text) : term.number;
      return value.isTensor() ? size_at(value.toTensor().sizes(), index, term.text)
                              : size_at(value.toIntVector(), index, term.text);
    }
    case Kind::kRank: return value.toTensor().dim();
    case Kind::kLength:
      return value.isTensor() ? value.toTensor().numel() : static_cast<int64_t>(value.toListRef().size());
    case Kind::kMost: return std::max<int64_t>(0, range_of(value).most);
    case Kind::kSum: {
      int64_t sum = 0;
      for_each_integer(value, [&](int64_t element) {
        if (__builtin_add_overflow(sum, element, &sum)) throw invalid_argument(term.text, " is too large");
      });
      return sum;
    }
    default: break;
  }
  if (value.isTensor()) return value.toTensor().numel();
  if (value.isBool()) return value.toBool() ? 1 : 0;
  if (value.isDouble()) return value.toDouble() != 0 ? 1 : 0;
  if (value.isInt()) return value.toInt();
  int64_t product = 1;
  for (int64_t size : value.toIntVector()) {
    if (size != -1 && __builtin_mul_overflow(product, size, &product))
      throw invalid_argument(term.text, " is too large");
  }
  return product;
}

}  // namespace muster::op_guards_internal
