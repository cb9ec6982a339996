// The expressions that rules about operands (op_guards.h) are made of, and what they look at.
#pragma once

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/runtime/ops/integer_range.h"

namespace muster::op_guards_internal {

using Stack = std::vector<c10::IValue>;

std::optional<size_t> position_of(std::string_view argument, const c10::FunctionSchema& schema);
bool is_given(const c10::IValue& value);  // neither None nor undefined
bool is_tensor(const c10::TypePtr& type);

// One term after the other, from left to right.
class Expression {
 public:
  Expression(std::string_view text, const c10::FunctionSchema& schema);

  // Whether all arguments that it names are in the schema. The others are only asked for if so.
  static bool fits(std::string_view text, const c10::FunctionSchema& schema);

  bool given(const Stack& stack) const;
  int64_t value(const Stack& stack) const;
  bool plain(const c10::FunctionSchema& schema) const;  // whether it can be told without a tensor
  bool looks_at_elements() const;                       // of a list or a tensor, not only at its size
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
