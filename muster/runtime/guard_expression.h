// The expressions that rules about operands (op_guards.h) are made of, and what they look at.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace muster::op_guards_internal {

using Stack = std::vector<c10::IValue>;

std::optional<size_t> position_of(std::string_view argument, const c10::FunctionSchema& schema);
bool is_given(const c10::IValue& value);  // neither None nor undefined
bool is_tensor(const c10::TypePtr& type);

// Calls `visit(int64_t)` for each element of a list or tensor of ints, or the one int; not for tensors elsewhere.
template <class Visit>
void for_each_integer(const c10::IValue& value, const Visit& visit) {
  if (value.isInt()) {
    visit(value.toInt());
  } else if (value.isIntList()) {
    for (int64_t element : value.toIntVector()) visit(element);
  } else if (value.isTensor() && value.toTensor().is_cpu() &&
             at::isIntegralType(value.toTensor().scalar_type(), true)) {
    const at::Tensor elements = value.toTensor().contiguous();
    if (elements.scalar_type() == at::kLong) {
      const int64_t* data = elements.const_data_ptr<int64_t>();
      for (int64_t i = 0; i < elements.numel(); ++i) visit(data[i]);
    } else {
      const at::Tensor wide = elements.to(at::kLong);
      const int64_t* data = wide.const_data_ptr<int64_t>();
      for (int64_t i = 0; i < wide.numel(); ++i) visit(data[i]);
    }
  }
}

struct Range {
  int64_t least = std::numeric_limits<int64_t>::max(), most = std::numeric_limits<int64_t>::min();

  Range with(const Range& other) const { return {std::min(least, other.least), std::max(most, other.most)}; }
};

// Of the elements of a tensor or list of ints, or the one int. Of a tensor elsewhere, too, which waits for its device.
Range range_of(const c10::IValue& value);

// One term after the other, from left to right.
class Expression {
 public:
  Expression(std::string_view text, const c10::FunctionSchema& schema);

  // Whether all arguments that it names are in the schema. The others are only asked for if so.
  static bool fits(std::string_view text, const c10::FunctionSchema& schema);

  bool given(const Stack& stack) const;
  int64_t value(const Stack& stack) const;
  bool plain(const c10::FunctionSchema& schema) const;  // whether it can be told without a tensor
  const std::string& text() const { return text_; }

 private:
  enum class Kind { kNumber, kWhole, kAt, kRank, kLength, kMost, kSum };
  struct Term {
    char op;
    Kind kind = Kind::kNumber;
    bool known = true;
    int64_t number = 0;             // kNumber; kAt: the index, unless an argument says it
    size_t position = 0;            // of the argument
    std::optional<size_t> index{};  // kAt: the argument that says which
    std::string text{};
  };

  static Term term(std::string_view text, char op, const c10::FunctionSchema& schema);
  static int64_t value_of(const Term& term, const Stack& stack);

  const std::string text_;
  std::vector<Term> terms_;
};

}  // namespace muster::op_guards_internal
