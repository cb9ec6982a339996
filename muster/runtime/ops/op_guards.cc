#include "muster/runtime/ops/op_guards.h"

#include <ATen/ExpandUtils.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <unordered_map>

#include "muster/base/status.h"
#include "muster/runtime/gpu/device_flags.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/guard_expression.h"

namespace muster {

// Has a name because Check, which has one, is made of it.
namespace op_guards_internal {

at::Tensor tensor_of(const c10::IValue& number) {
  return number.isTensor() ? number.toTensor() : at::scalar_tensor(number.toScalar(), at::kLong);
}

// What the two are divided as; undefined unless both are integers in the CPU's memory.
at::ScalarType integral_type_of(const c10::IValue& a, const c10::IValue& b) {
  auto integral = [](const c10::IValue& value) {
    return value.isInt() ||
           (value.isTensor() && value.toTensor().is_cpu() && at::isIntegralType(value.toTensor().scalar_type(), true));
  };
  if (!integral(a) || !integral(b)) return at::ScalarType::Undefined;
  if (a.isTensor() && b.isTensor()) return at::result_type(a.toTensor(), b.toTensor());
  if (a.isTensor()) return at::result_type(a.toTensor(), b.toScalar());
  return b.isTensor() ? at::result_type(a.toScalar(), b.toTensor()) : at::kLong;
}

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const size_t end = text.find(' ');
    words.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return words;
}

bool compares_values(Must must) { return must <= Must::kBeAtMost; }

bool names_arguments(Must must) {
  return must == Must::kIndexEach || (must >= Must::kHaveSizesOf && must < Must::kBeGiven);
}

// The two expressions of "a to b", "a within b" and "a or b"; the second is empty if there is only one.
std::pair<std::string_view, std::string_view> both_of(std::string_view expected) {
  for (std::string_view word : {" to ", " within ", " or "}) {
    const size_t at = expected.find(word);
    if (at != std::string_view::npos) return {expected.substr(0, at), expected.substr(at + word.size())};
  }
  return {expected, {}};
}

c10::IntArrayRef leading(const at::Tensor& tensor, int but, std::string_view name) {
  if (tensor.dim() < but) {
    throw invalid_argument(name, " has ", tensor.dim(), " dimensions, expected at least ", but);
  }
  return tensor.sizes().slice(0, tensor.dim() - but);
}

std::string text_of(c10::IntArrayRef sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) str_append(text, i == 0 ? "" : ", ", sizes[i]);
  return text + "]";
}

}  // namespace op_guards_internal

using namespace op_guards_internal;

// A rule with its names looked up.
class OpGuard::Check {
 public:
  Check(const GuardRule& rule, const c10::FunctionSchema& schema)
      : rule_(rule),
        operand_(rule.operand, schema),
        expected_(names_arguments(rule.must) ? "" : both_of(rule.expected).first, schema),
        second_(names_arguments(rule.must) ? "" : both_of(rule.expected).second, schema),
        when_(rule.when, schema),
        position_(compares_values(rule.must) ? 0 : *position_of(rule.operand, schema)) {
    if (names_arguments(rule.must)) {
      for (std::string_view name : words(rule.expected)) others_.push_back(*position_of(name, schema));
    }
    if (rule.must == Must::kIndexInRows || rule.must == Must::kBeStarts)
      others_.push_back(*position_of(second_.text(), schema));
    plain_ = operand_.plain(schema) && expected_.plain(schema) && second_.plain(schema) && when_.plain(schema) &&
             std::none_of(others_.begin(), others_.end(),
                          [&](size_t other) { return is_tensor(schema.arguments()[other].real_type()); });
  }

  // Whether it looks at no tensor.
  bool plain() const { return plain_; }

  // Whether it can be made on a GPU that nobody waits for; or it looks at no element at all.
  bool can_be_deferred() const {
    if (operand_.looks_at_elements() || expected_.looks_at_elements() || second_.looks_at_elements() ||
        when_.looks_at_elements()) {
      return false;
    }
    switch (rule_.must) {
      case Must::kIndexInRows:
      case Must::kBeStarts:
      case Must::kPivot:
      case Must::kBeFinite:
      case Must::kBeWeights: return false;
      default: return true;
    }
  }

  void check_later(std::vector<c10::IValue>& stack, DeviceFlags& flags, const std::string& op) const {
    const bool on_gpu = stack[position_].isTensor() && stack[position_].toTensor().is_cuda();
    if (rule_.must == Must::kIndexEach) return make_each_safe(stack, flags, op);
    if (!on_gpu || !looks_at_elements(rule_.must)) return check(stack);
    if (!rule_.when.empty() && (!when_.given(stack) || when_.value(stack) == 0)) return;
    if (!expected_.given(stack)) return;
    at::Tensor operand = stack[position_].toTensor();
    if (rule_.must == Must::kBeFraction) {
      stack[position_] = flags.safe_fractions(
          operand, str_cat("op ", op, ": ", rule_.operand, " has elements that are not between 0 and 1"));
      return;
    }
    const int64_t end = expected_.value(stack);
    DeviceFlags::Range range{.least = rule_.must == Must::kIndexFromEnd ? -end : 0, .end = end};
    if (rule_.must == Must::kIndexOrSkip) range.or_else = second_.value(stack);
    stack[position_] = safe(operand, range, flags, op);
  }

  void check(const Stack& stack) const {
    if (!rule_.when.empty() && (!when_.given(stack) || when_.value(stack) == 0)) return;
    if (!operand_.given(stack) && rule_.must == Must::kBeGiven) throw invalid_argument(rule_.operand, " is missing");
    if (!operand_.given(stack) || !expected_.given(stack)) return;
    for (size_t other : others_) {
      if (!is_given(stack[other])) return;
    }
    switch (rule_.must) {
      case Must::kEqual: return compare(stack, "", [](int64_t a, int64_t b) { return a == b; });
      case Must::kBeAtLeast: return compare(stack, "at least ", [](int64_t a, int64_t b) { return a >= b; });
      case Must::kBeAtMost: return compare(stack, "at most ", [](int64_t a, int64_t b) { return a <= b; });
      case Must::kIndex:
      case Must::kForwardIndex: return check_index(range_of(stack[position_]), expected_.value(stack));
      case Must::kIndexInRows: return check_rows(stack);
      case Must::kIndexOrSkip: return check_index_or_skip(stack[position_].toTensor(), stack);
      case Must::kIndexFromEnd: return check_from_end(range_of(stack[position_]), expected_.value(stack));
      case Must::kIndexEach: return check_index_each(stack);
      case Must::kBeStarts: return check_starts(stack);
      case Must::kPivot: return check_pivots(stack);
      case Must::kBeFraction:
      case Must::kBeWeights:
      case Must::kBeFinite: return stack[position_].isTensor() ? check_reals(stack[position_].toTensor()) : void();
      case Must::kBeContiguous:
        if (!stack[position_].toTensor().is_contiguous()) throw invalid_argument(rule_.operand, " is not contiguous");
        return;
      case Must::kBeReal: return check_real(stack[position_].toTensor());
      case Must::kBeScale: return check_scale(stack);
      case Must::kHaveSizesOf: return check_sizes(stack);
      case Must::kHaveBothSizes: return check_both_sizes(stack);
      case Must::kHaveTypeOf: return check_type(stack);
      case Must::kDivideBy: return check_quotients(stack[position_], stack[others_[0]]);
      case Must::kMatchEach: return check_each(stack);
      case Must::kStayInside: return check_inside(stack);
      case Must::kBeGiven:
      case Must::kBeMissing: return;
    }
  }

 private:
  template <class Holds>
  void compare(const Stack& stack, const char* relation, const Holds& holds) const {
    const int64_t is = operand_.value(stack), expected = expected_.value(stack);
    if (!holds(is, expected)) {
      throw invalid_argument(rule_.operand, " is ", is, ", expected ", relation, expected, reason(expected));
    }
  }

  std::string reason(int64_t expected) const {
    return expected_.text() == std::to_string(expected) ? "" : str_cat(" (", expected_.text(), ")");
  }

  void check_index(const IntegerRange& range, int64_t end) const {
    if (range.least > range.most || (range.least >= 0 && range.most < end)) return;
    const int64_t found = range.least < 0 ? range.least : range.most;
    const std::optional<float> number = number_in_place_of(found);
    throw invalid_argument(rule_.operand, " has ", number ? str_cat(*number) : std::to_string(found),
                           ", expected at least 0 and below ", end, reason(end));
  }

  void check_from_end(const IntegerRange& range, int64_t size) const {
    if (range.least > range.most || (range.least >= -size && range.most < size)) return;
    throw invalid_argument(rule_.operand, " has ", range.least < -size ? range.least : range.most,
                           ", expected at least ", -size, " and below ", size);
  }

  void check_index_or_skip(const at::Tensor& indices, const Stack& stack) const {
    const int64_t end = expected_.value(stack), skipped = second_.value(stack);
    if (IntegerRange range = range_of(indices); range.least > range.most || (range.least >= 0 && range.most < end))
      return;
    check_index(range_of(indices.masked_select(indices.ne(skipped))), end);
  }

  static bool looks_at_elements(Must must) {
    return must == Must::kIndex || must == Must::kForwardIndex || must == Must::kIndexOrSkip ||
           must == Must::kIndexFromEnd || must == Must::kBeFraction;
  }

  at::Tensor safe(const at::Tensor& operand, const DeviceFlags::Range& range, DeviceFlags& flags,
                  const std::string& op) const {
    return flags.safe(operand, range,
                      str_cat("op ", op, ": ", rule_.operand, " has an element that is not at least ", range.least,
                              " and below ", range.end));
  }

  void make_each_safe(std::vector<c10::IValue>& stack, DeviceFlags& flags, const std::string& op) const {
    const at::Tensor& from = stack[others_[0]].toTensor();
    c10::List<std::optional<at::Tensor>> safe_ones;
    int64_t dimension = 0;
    for (const c10::IValue& index : stack[position_].toListRef()) {
      if (!is_given(index)) {
        safe_ones.push_back(index.isNone() ? std::nullopt : std::optional(index.toTensor()));
        ++dimension;
        continue;
      }
      const at::Tensor& tensor = index.toTensor();
      if (tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte) {
        throw failed_precondition("a mask is looked at before each call");
      }
      const int64_t size = dimension < from.dim() ? from.size(dimension) : 0;
      safe_ones.push_back(tensor.is_cuda() ? safe(tensor, {.least = -size, .end = size}, flags, op) : tensor);
      ++dimension;
    }
    stack[position_] = std::move(safe_ones);
  }

  // As x[i, mask, j] means it: a mask stands for as many dimensions as it has, a missing one for one.
  void check_index_each(const Stack& stack) const {
    const at::Tensor& from = stack[others_[0]].toTensor();
    int64_t dimension = 0;
    for (const c10::IValue& index : stack[position_].toListRef()) {
      const bool given = is_given(index);
      const bool mask =
          given && (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte);
      if (given && !mask && dimension < from.dim()) check_from_end(range_of(index), from.size(dimension));
      dimension += mask ? index.toTensor().dim() : 1;
    }
  }

  // One row after the other: those of a matrix, or without a gap between them.
  void check_rows(const Stack& stack) const {
    const at::Tensor& given = stack[position_].toTensor();
    if (!given.is_cpu() || !at::isIntegralType(given.scalar_type(), true)) return;
    if (given.dim() != 1 && given.dim() != 2) {
      throw invalid_argument(rule_.operand, " has ", given.dim(), " dimensions, expected 1 or 2");
    }
    const at::Tensor elements = given.to(at::kLong).contiguous();
    const int64_t* data = elements.const_data_ptr<int64_t>();
    const int64_t width = given.dim() == 2 ? given.size(1) : 0;
    int64_t row = 0, begin = 0;
    IntegerRange range;
    for_each_integer(stack[others_[0]], [&](int64_t length) {
      if (given.dim() == 2) begin = std::min(row++, given.size(0)) * width;
      const int64_t there = std::min(elements.numel() - begin, given.dim() == 2 ? width : elements.numel());
      if (length < 0 || length > there) {
        throw invalid_argument(second_.text(), " has ", length, ", expected at least 0 and at most ", there, ", which ",
                               rule_.operand, " has");
      }
      for (int64_t i = begin; i < begin + length; ++i) range = range.with({data[i], data[i]});
      if (given.dim() == 1) begin += length;
    });
    check_index(range, expected_.value(stack));
  }

  void check_starts(const Stack& stack) const {
    const int64_t end = stack[others_[0]].toTensor().numel(), most = expected_.value(stack);
    int64_t rows = 0;
    for_each_integer(stack[position_], [&](int64_t start) { rows += start < end ? 1 : 0; });
    if (rows > most) throw invalid_argument(rule_.operand, " has ", rows, " rows, expected at most ", most);
  }

  // A block of two has the same negative pivot twice.
  void check_pivots(const Stack& stack) const {
    const at::Tensor& pivots = stack[position_].toTensor();
    const int64_t most = expected_.value(stack), width = pivots.dim() == 0 ? 1 : pivots.size(-1);
    int64_t place = 0, open = 0;
    for_each_integer(stack[position_], [&](int64_t pivot) {
      const bool last = ++place % width == 0;
      const bool fits = pivot != 0 && pivot <= most && pivot >= -most && (open == 0 || pivot == open);
      open = open == 0 && pivot < 0 ? pivot : 0;
      if (!fits || (last && open != 0)) throw invalid_argument(rule_.operand, " has the pivot ", pivot, " of ", most);
    });
  }

  void check_reals(const at::Tensor& tensor) const {
    if (tensor.numel() == 0) return;
    if (rule_.must != Must::kBeFraction) {
      if (!at::isfinite(tensor).all().item().toBool()) {
        throw invalid_argument(rule_.operand, " has elements that are not finite");
      }
      if (rule_.must == Must::kBeWeights && !tensor.ge(0).all().item().toBool()) {
        throw invalid_argument(rule_.operand, " has elements below 0");
      }
      return;
    }
    if (!(tensor.ge(0).all().item().toBool() && tensor.le(1).all().item().toBool())) {
      throw invalid_argument(rule_.operand, " has elements that are not between 0 and 1");
    }
  }

  void check_real(const at::Tensor& tensor) const {
    if (!at::isIntegralType(tensor.scalar_type(), true)) return;
    throw invalid_argument(rule_.operand, " is of ", c10::toString(tensor.scalar_type()),
                           ", expected a type with fractions");
  }

  // Narrower types are divided as ints, which have room for the quotient.
  void check_quotients(const c10::IValue& dividend, const c10::IValue& divisor) const {
    const at::ScalarType type = integral_type_of(dividend, divisor);
    if (type != at::kInt && type != at::kLong) return;
    const int64_t least = type == at::kInt ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int64_t>::min();
    const IntegerRange divisors = range_of(divisor);
    if (divisors.least > -1 || divisors.most < -1 || range_of(dividend).least > least) return;
    const at::Tensor traps = at::logical_and(tensor_of(dividend).eq(least), tensor_of(divisor).eq(-1));
    if (traps.any().item().toBool()) {
      throw invalid_argument(rule_.operand, " has ", least, ", which has no quotient by -1");
    }
  }

  void check_scale(const Stack& stack) const {
    const auto from = static_cast<double>(expected_.value(stack)), to = static_cast<double>(second_.value(stack));
    const double scale = stack[position_].toDouble();
    if (std::abs(from * scale - to) <= 1) return;
    throw invalid_argument(rule_.operand, " is ", scale, ", which does not make ", from, " ", to);
  }

  void check_sizes(const Stack& stack) const {
    const at::Tensor &is = stack[position_].toTensor(), &other = stack[others_[0]].toTensor();
    if (is.dim() == other.dim() && leading(is, rule_.but, rule_.operand) == leading(other, rule_.but, rule_.expected)) {
      return;
    }
    throw invalid_argument(rule_.operand, " has the sizes ", text_of(is.sizes()), ", expected those of ",
                           rule_.expected, ", ", text_of(other.sizes()),
                           rule_.but > 0 ? str_cat(", but for the last ", rule_.but) : "");
  }

  void check_both_sizes(const Stack& stack) const {
    const at::Tensor& is = stack[position_].toTensor();
    const std::vector<int64_t> both = at::infer_size(leading(stack[others_[0]].toTensor(), rule_.but, rule_.expected),
                                                     leading(stack[others_[1]].toTensor(), rule_.but, rule_.expected));
    if (leading(is, rule_.but, rule_.operand) == c10::IntArrayRef(both)) return;
    throw invalid_argument(rule_.operand, " has the sizes ", text_of(is.sizes()), ", expected ", text_of(both), " and ",
                           rule_.but, " more");
  }

  void check_type(const Stack& stack) const {
    const at::Tensor &is = stack[position_].toTensor(), &other = stack[others_[0]].toTensor();
    if (is.scalar_type() == other.scalar_type()) return;
    throw invalid_argument(rule_.operand, " is of ", c10::toString(is.scalar_type()), ", expected ",
                           c10::toString(other.scalar_type()), " as ", rule_.expected);
  }

  void check_each(const Stack& stack) const {
    const auto tensors = stack[position_].toListRef(), others = stack[others_[0]].toListRef();
    if (tensors.size() != others.size()) {
      throw invalid_argument(rule_.operand, " has ", tensors.size(), " tensors, expected ", others.size(), " as ",
                             rule_.expected);
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor &is = tensors[i].toTensor(), &other = others[i].toTensor();
      if (!is.is_non_overlapping_and_dense()) {
        throw invalid_argument(rule_.operand, " does not fill its memory at ", i);
      }
      if (is.sizes() == other.sizes() && is.scalar_type() == other.scalar_type()) continue;
      throw invalid_argument(rule_.operand, " has ", text_of(is.sizes()), " of ", c10::toString(is.scalar_type()),
                             " at ", i, ", expected ", text_of(other.sizes()), " of ",
                             c10::toString(other.scalar_type()), " as ", rule_.expected);
    }
  }

  void check_inside(const Stack& stack) const {
    const std::vector<int64_t> sizes = stack[position_].toIntVector(), strides = stack[others_[0]].toIntVector();
    const at::Tensor& tensor = stack[others_[1]].toTensor();
    if (sizes.size() != strides.size()) {
      throw invalid_argument(rule_.operand, " has ", sizes.size(), " sizes and ", strides.size(), " strides");
    }
    __int128 last = tensor.storage_offset();
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] < 0 || strides[i] < 0) throw invalid_argument(rule_.operand, " or its strides are negative");
      if (sizes[i] == 0) return;
      last += static_cast<__int128>(sizes[i] - 1) * strides[i];
    }
    const auto there = static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
    if (last < there) return;
    throw invalid_argument(rule_.operand, " ", text_of(sizes), " with strides ", text_of(strides),
                           " does not fit into a memory of ", there, " elements");
  }

  const GuardRule& rule_;
  const Expression operand_;
  const Expression expected_;
  const Expression second_;
  const Expression when_;
  const size_t position_;
  std::vector<size_t> others_;
  bool plain_ = false;
};

OpGuard::OpGuard(Checks once, Checks each, std::vector<bool> may_be_missing)
    : once_(std::move(once)), each_(std::move(each)), may_be_missing_(std::move(may_be_missing)) {}
OpGuard::~OpGuard() = default;

void OpGuard::check_once(const std::vector<c10::IValue>& stack) const {
  for (const auto& check : once_) check->check(stack);
}

void OpGuard::check(const std::vector<c10::IValue>& stack) const {
  for (const auto& check : each_) check->check(stack);
}

bool OpGuard::can_be_deferred() const {
  return std::all_of(each_.begin(), each_.end(), [](const auto& check) { return check->can_be_deferred(); });
}

void OpGuard::check_later(std::vector<c10::IValue>& stack, DeviceFlags& flags, const std::string& op) const {
  for (const auto& check : each_) check->check_later(stack, flags, op);
}

bool fits(const GuardRule& rule, const c10::FunctionSchema& schema) {
  if (rule.op != schema.name()) return false;
  if (!Expression::fits(rule.operand, schema) || !Expression::fits(rule.when, schema)) return false;
  if (!names_arguments(rule.must)) {
    const auto [first, second] = both_of(rule.expected);
    return Expression::fits(first, schema) && Expression::fits(second, schema);
  }
  const auto names = words(rule.expected);
  return std::all_of(names.begin(), names.end(),
                     [&](std::string_view name) { return position_of(name, schema).has_value(); });
}

namespace {

using RulesByOp = std::unordered_map<std::string_view, std::vector<const GuardRule*>>;

const RulesByOp& rules_for(at::DeviceType device) {
  static const auto& rules = *[] {
    auto* made = new std::array<RulesByOp, 2>;
    for (RulesByOp& each : *made) {
      for (const GuardRule& rule : guard_rules()) each[rule.op].push_back(&rule);
    }
    for (const GuardRule& rule : gpu_guard_rules()) (*made)[1][rule.op].push_back(&rule);
    return made;
  }();
  return rules[device == at::DeviceType::CPU ? 0 : 1];
}

}  // namespace

std::shared_ptr<const OpGuard> guard_of(const c10::OperatorHandle& op, const FoundByForward& found,
                                        at::DeviceType device) {
  const RulesByOp& rules = rules_for(device);
  const c10::FunctionSchema& schema = op.schema();
  const auto of_op = rules.find(schema.name());
  if (of_op == rules.end()) return nullptr;
  OpGuard::Checks once, each;
  std::vector<bool> may_be_missing(schema.arguments().size(), false);
  for (const GuardRule* rule : of_op->second) {
    if (!fits(*rule, schema)) continue;
    if (rule->must == Must::kBeMissing) {
      may_be_missing[*position_of(rule->operand, schema)] = true;
      continue;
    }
    if (rule->must == Must::kForwardIndex && found &&
        found(*position_of(rule->operand, schema), *position_of("self", schema))) {
      continue;
    }
    auto check = std::make_unique<OpGuard::Check>(*rule, schema);
    (check->plain() ? once : each).push_back(std::move(check));
  }
  return std::make_shared<OpGuard>(std::move(once), std::move(each), std::move(may_be_missing));
}

}  // namespace muster
