#include "muster/runtime/ops/small_ops.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/sum.h>
#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <concepts>
#include <functional>
#include <optional>
#include <type_traits>

namespace muster {
namespace {

constexpr int64_t kMostElements = 1024;  // then libtorch's wider instructions begin to pay

// The operand as one number, which does not decide about the type of the result.
template <class T>
std::optional<T> number_in(const c10::IValue& operand) {
  if (operand.isDouble() && std::floating_point<T>) return static_cast<T>(operand.toDouble());
  if (operand.isInt()) return static_cast<T>(operand.toInt());
  if (!operand.isTensor()) return std::nullopt;
  const at::Tensor& tensor = operand.toTensor();
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->is_wrapped_number()) return std::nullopt;
  if (tensor.scalar_type() == at::kLong) return static_cast<T>(*tensor.const_data_ptr<int64_t>());
  if (tensor.scalar_type() == at::kDouble && std::floating_point<T>) {
    return static_cast<T>(*tensor.const_data_ptr<double>());
  }
  return std::nullopt;
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.is_contiguous() &&
         !tensor.is_neg() && !tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

// What add and sub multiply their second operand by. libtorch refuses a fraction, even 1.0, for whole numbers.
bool is_one(const c10::IValue& factor, at::ScalarType type) {
  if (factor.isDouble()) return factor.toDouble() == 1 && at::isFloatingType(type);
  return factor.isInt() && factor.toInt() == 1;
}

template <class T, class Compute>
bool compute(std::vector<c10::IValue>& stack, bool overwrite, Compute compute) {
  const at::Tensor& a = stack[0].toTensor();
  const std::optional<T> number = number_in<T>(stack[1]);
  const T* right = nullptr;
  if (!number) {
    if (!stack[1].isTensor()) return false;
    const at::Tensor& b = stack[1].toTensor();
    if (!is_plain(b) || b.scalar_type() != a.scalar_type() || b.sizes() != a.sizes()) return false;
    right = b.const_data_ptr<T>();
    const std::less<const T*> before;  // of any two pointers
    const T* const left = a.const_data_ptr<T>();
    const bool overlap = right != left && before(right, left + a.numel()) && before(left, right + a.numel());
    if (overwrite && overlap) return false;  // libtorch says so
  }
  at::Tensor result = overwrite ? a : at::Tensor(at::detail::empty_cpu(a.sizes(), a.scalar_type()));
  const T* const left = a.const_data_ptr<T>();
  T* const to = result.mutable_data_ptr<T>();
  const int64_t elements = a.numel();
  if (number) {
    for (int64_t i = 0; i < elements; ++i) to[i] = compute(left[i], *number);
  } else {
    for (int64_t i = 0; i < elements; ++i) to[i] = compute(left[i], right[i]);
  }
  stack.resize(1);
  stack[0] = std::move(result);
  return true;
}

// Integers wrap around, as libtorch's do.
template <class T>
using Wide = typename std::conditional_t<std::integral<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

struct Plus {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wide<T>>(a) + static_cast<Wide<T>>(b));
  }
};
struct Minus {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wide<T>>(a) - static_cast<Wide<T>>(b));
  }
};
struct Times {
  template <class T>
  T operator()(T a, T b) const {
    return static_cast<T>(static_cast<Wide<T>>(a) * static_cast<Wide<T>>(b));
  }
};
struct Over {
  static constexpr bool kFloatsOnly = true;  // integers become floats
  template <class T>
  T operator()(T a, T b) const {
    return a / b;
  }
};

template <class Compute, bool in_place>
bool element_by_element(std::vector<c10::IValue>& stack, bool overwrite) {
  const at::Tensor& first = stack[0].toTensor();
  if (!is_plain(first) || first.numel() > kMostElements) return false;
  if (stack.size() > 2 && !is_one(stack[2], first.scalar_type())) return false;
  const bool here = in_place || overwrite;
  if (first.scalar_type() == at::kFloat) return compute<float>(stack, here, Compute());
  if (first.scalar_type() == at::kDouble) return compute<double>(stack, here, Compute());
  if constexpr (!requires { Compute::kFloatsOnly; }) {
    if (first.scalar_type() == at::kLong) return compute<int64_t>(stack, here, Compute());
  }
  return false;
}

// ---- Sums and means over dimensions: libtorch adds them up, and what it does before and after takes it longer.
at::Tensor sum_of(const at::Tensor& tensor, const c10::IValue& dimensions, bool keeps) {
  if (dimensions.isNone()) return at::sum(tensor, at::OptionalIntArrayRef(), keeps);
  return at::sum(tensor, dimensions.toDimVector(), keeps);
}

// Of floats as doubles.
bool wide_sum(std::vector<c10::IValue>& stack, bool /*overwrite*/) {
  const at::Tensor& from = stack[0].toTensor();
  if (!is_plain(from) || from.numel() > kMostElements || from.scalar_type() != at::kFloat) return false;
  if (!stack[3].isInt() || stack[3].toInt() != static_cast<int64_t>(at::kDouble)) return false;
  at::Tensor wide = at::detail::empty_cpu(from.sizes(), at::kDouble);
  std::copy_n(from.const_data_ptr<float>(), from.numel(), wide.mutable_data_ptr<double>());
  stack.assign({sum_of(wide, stack[1], stack[2].toBool())});
  return true;
}

bool mean(std::vector<c10::IValue>& stack, bool /*overwrite*/) {
  const at::Tensor& from = stack[0].toTensor();
  if (!is_plain(from) || from.scalar_type() != at::kFloat || from.numel() > kMostElements || from.numel() == 0 ||
      !stack[3].isNone()) {
    return false;
  }
  at::Tensor result = sum_of(from, stack[1], stack[2].toBool());
  const auto count = static_cast<float>(from.numel() / result.numel());
  float* const means = result.mutable_data_ptr<float>();
  for (int64_t i = 0; i < result.numel(); ++i) means[i] /= count;
  stack.assign({std::move(result)});
  return true;
}

}  // namespace

SmallOp small_op(std::string_view op_name) {
  static const auto& table = *new absl::flat_hash_map<std::string_view, SmallOp>{
      {"aten::add.Tensor", &element_by_element<Plus, false>},
      {"aten::add.Scalar", &element_by_element<Plus, false>},
      {"aten::add_.Tensor", &element_by_element<Plus, true>},
      {"aten::add_.Scalar", &element_by_element<Plus, true>},
      {"aten::sub.Tensor", &element_by_element<Minus, false>},
      {"aten::sub.Scalar", &element_by_element<Minus, false>},
      {"aten::sub_.Tensor", &element_by_element<Minus, true>},
      {"aten::sub_.Scalar", &element_by_element<Minus, true>},
      {"aten::mul.Tensor", &element_by_element<Times, false>},
      {"aten::mul.Scalar", &element_by_element<Times, false>},
      {"aten::mul_.Tensor", &element_by_element<Times, true>},
      {"aten::mul_.Scalar", &element_by_element<Times, true>},
      {"aten::div.Tensor", &element_by_element<Over, false>},
      {"aten::div.Scalar", &element_by_element<Over, false>},
      {"aten::div_.Tensor", &element_by_element<Over, true>},
      {"aten::div_.Scalar", &element_by_element<Over, true>},
      {"aten::sum.dim_IntList", &wide_sum},
      {"aten::mean.dim", &mean},
  };
  const auto found = table.find(op_name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace muster
