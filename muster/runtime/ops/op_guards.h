// What must hold for the operands of an op whose kernel does not look.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace muster {

class DeviceFlags;

// How an operand is held against an expression. "An expression" is made of terms and of * / + -, from left to right. A
// term is a number; the value of an int or bool, the number of elements of a tensor, the product of a list of ints but
// for those that are -1; name[i], a size of a tensor or an element of a list of ints, where i is a number, or the name
// of an int or of a list that ends with it; rank(name), the dimensions of a tensor; len(name), the length of a list or
// tensor; max(name) and sum(name), of the elements of a list or tensor.
enum class Must {
  kEqual,      // the two expressions are equal
  kBeAtLeast,  // `operand`, an expression, is at least the other
  kBeAtMost,
  kIndex,         // every element of `operand` (a tensor, a list, an int) is at least 0 and below the expression
  kForwardIndex,  // the same, for what the op's forward has found in `self`: known where that is in the program, too
  kIndexInRows,   // the same for "expression within lengths": of row i the first lengths[i]; padding may be anything
  kIndexOrSkip,   // the same for "expression or name": or it is the int that is called so
  kIndexFromEnd,  // the same, but it may count from the end, below 0
  kIndexEach,     // the same for each tensor of a list, and the size of the tensor named that it counts in
  kBeStarts,      // of rows, "expression within name": at most so many are below the number of elements of `name`
  kPivot,         // every element counts from 1 and is at most the expression; two equal ones may be negative
  kBeFraction,    // every element is between 0 and 1
  kBeFinite,
  kBeWeights,  // every element is finite and at least 0
  kBeContiguous,
  kBeReal,         // of a type with fractions
  kBeScale,        // of sizes, "a to b", within rounding
  kHaveSizesOf,    // but for the last `but` sizes, `operand` has the sizes of the tensor named
  kHaveBothSizes,  // but for the last `but` sizes, `operand` has the sizes that two tensors, "a b", have together
  kHaveTypeOf,
  kDivideBy,   // "divisor ...": quotients of integers fit their type: the least one by -1 traps; where all are given
  kMatchEach,  // each tensor of the list fills its memory, and has the sizes and type of the other's, in number and all
  kStayInside,  // sizes `operand` with the strides and of the tensor named, "stride self", stay in its memory
  kBeGiven,     // neither None nor undefined
  kBeMissing,   // may be undefined although the schema does not say so
};

struct GuardRule {
  std::string_view op;       // without overload; holds for those that have all the arguments named
  std::string_view operand;  // the name of an argument, or an expression
  Must must;
  std::string_view expected{};
  int but = 0;
  std::string_view when{};  // an expression: the rule holds where it is not 0
};

// The one table of them all.
std::span<const GuardRule> guard_rules();

// And of what CPU kernels look at themselves, but CUDA's only with an assertion in the kernel: it takes the whole
// context with it, and so everything that a server has on the GPU.
std::span<const GuardRule> gpu_guard_rules();

// Most of libtorch's kernels check their operands; the others read and write beyond them when sizes do not fit each
// other or an index is out of range. In a program that was traced they fit, but a program may be forged. Immutable.
// A rule about an operand that is not given holds. Limits: of elements in a GPU's memory only the range is looked at
// (and fractions), which waits for the GPU.
class OpGuard {
 public:
  class Check;
  using Checks = std::vector<std::unique_ptr<const Check>>;
  OpGuard(Checks once, Checks each, std::vector<bool> may_be_missing);
  ~OpGuard();

  // `stack` is what the op is about to be called with; its tensors are defined unless they may be missing. Both throw
  // Error{kInvalidArgument} that says which operand is wrong and what was expected.
  void check_once(const std::vector<c10::IValue>& stack) const;  // looks at no tensor
  void check(const std::vector<c10::IValue>& stack) const;       // before each call; what the other has not looked at
  bool looks_at_each_call() const { return !each_.empty(); }

  // The same as check() for operands in a GPU's memory, without a wait: what is wrong with their elements is seen
  // later, and the kernel gets others in their place. REQUIRES: can_be_deferred().
  void check_later(std::vector<c10::IValue>& stack, DeviceFlags& flags, const std::string& op) const;
  bool can_be_deferred() const;

  // That the op knows what to do without this tensor although its schema does not say so.
  bool may_be_missing(size_t argument) const { return may_be_missing_[argument]; }

 private:
  const Checks once_;
  const Checks each_;
  const std::vector<bool> may_be_missing_;
};

// Whether the op's forward has found `indices` in `self` (positions of arguments).
using FoundByForward = std::function<bool(size_t indices, size_t self)>;

// Null if the op needs none on this kind of device.
std::shared_ptr<const OpGuard> guard_of(const c10::OperatorHandle& op, const FoundByForward& found = {},
                                        at::DeviceType device = at::DeviceType::CPU);

// Whether the rule can be applied to this op: its name, and all arguments that it names.
bool fits(const GuardRule& rule, const c10::FunctionSchema& schema);

}  // namespace muster
