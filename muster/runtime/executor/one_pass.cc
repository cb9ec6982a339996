#include "muster/runtime/executor/one_pass.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_strided.h>
#include <absl/container/flat_hash_map.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <initializer_list>

#include "muster/runtime/executor/step_ops.h"
#include "muster/runtime/rows/row_table.h"

namespace muster {
namespace {

// ---- The loops: of memory that does not overlap, so that compilers make vectors of them.
template <class T>
struct MomentumNumbers {
  T factor, decay, rate;
  bool decays, nesterov;
};

template <class T>
void go_with_momentum(int64_t count, T* __restrict value, const T* __restrict gradient, T* __restrict momentum,
                      const MomentumNumbers<T>& numbers) {
  const T factor = numbers.factor, decay = numbers.decay, rate = numbers.rate;
  const bool decays = numbers.decays, nesterov = numbers.nesterov;
  for (int64_t i = 0; i < count; ++i) {
    const T g = decays ? gradient[i] + decay * value[i] : gradient[i];
    const T m = factor * momentum[i] + g;
    momentum[i] = m;
    value[i] -= rate * (nesterov ? g + factor * m : m);
  }
}

template <class T>
struct AdamNumbers {
  T kept;   // of the value, where the decay is taken off that
  T decay;  // else
  T share_of_gradient, beta2, share_of_square, correction, epsilon, rate;
  bool decays;
};

template <class T>
void go_with_adam(int64_t count, T* __restrict value, const T* __restrict gradient, T* __restrict mean,
                  T* __restrict variance, const AdamNumbers<T>& numbers) {
  const T kept = numbers.kept, decay = numbers.decay, beta2 = numbers.beta2, square = numbers.share_of_square;
  const T correction = numbers.correction, epsilon = numbers.epsilon, rate = numbers.rate;
  const bool decays = numbers.decays;
  // As lerp_ does it, which is right at either end.
  const bool near_mean = numbers.share_of_gradient < T(0.5);
  const T way = near_mean ? numbers.share_of_gradient : numbers.share_of_gradient - 1;
  for (int64_t i = 0; i < count; ++i) {
    const T g = decays ? gradient[i] + decay * value[i] : gradient[i];
    const T m = (near_mean ? mean[i] : g) + way * (g - mean[i]);
    const T v = variance[i] * beta2 + square * g * g;
    mean[i] = m;
    variance[i] = v;
    value[i] = value[i] * kept - rate * (m / (std::sqrt(v) / correction + epsilon));
  }
}

template <class Loop>
void share_out(int64_t count, const Loop& loop) {
  constexpr int64_t kWorthAThread = 32 << 10;  // elements, as for libtorch's own loops
  at::parallel_for(0, count, kWorthAThread, [&](int64_t begin, int64_t end) { loop(begin, end - begin); });
}

template <class Use>
void with_type(at::ScalarType type, const Use& use) {
  if (type == at::kFloat) {
    use(float{});
  } else {
    use(double{});
  }
}

// ---- What they are given
bool is_plain_number(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided &&
         tensor.scalar_type() == at::kDouble && tensor.numel() == 1 && !tensor.is_neg() && !tensor._is_zerotensor();
}

bool is_plain_like(const at::Tensor& tensor, const at::Tensor& value) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == at::kStrided &&
         tensor.scalar_type() == value.scalar_type() && tensor.sizes() == value.sizes() && !tensor.is_neg() &&
         !tensor._is_zerotensor() && RowTable::of(tensor) == nullptr;
}

bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous());
}

// REQUIRES: neither has gaps.
bool are_apart(const at::Tensor& a, const at::Tensor& b) {
  const std::less_equal<const char*> is_up_to;  // of any two pointers
  const auto* const from_a = static_cast<const char*>(a.const_data_ptr());
  const auto* const from_b = static_cast<const char*>(b.const_data_ptr());
  return a.numel() == 0 || is_up_to(from_a + a.nbytes(), from_b) || is_up_to(from_b + b.nbytes(), from_a);
}

// The gradient, lying as the value does; not defined if a loop may not walk over these. `slots` lie as the value does,
// or they would be written to a copy.
at::Tensor gradient_beside(const at::Tensor& value, std::initializer_list<const at::Tensor*> slots,
                           const at::Tensor& gradient) {
  if (!value.defined() || (value.scalar_type() != at::kFloat && value.scalar_type() != at::kDouble)) return {};
  if (!is_plain_like(value, value) || !value.is_non_overlapping_and_dense()) return {};
  if (!is_plain_like(gradient, value)) return {};
  for (const at::Tensor* slot : slots) {
    if (!is_plain_like(*slot, value) || !lie_alike(*slot, value) || !are_apart(*slot, value)) return {};
    for (const at::Tensor* other : slots) {
      if (other != slot && !are_apart(*slot, *other)) return {};
    }
  }
  if (!lie_alike(gradient, value)) {
    return at::empty_strided(value.sizes(), value.strides(), value.options()).copy_(gradient);
  }
  const auto is_apart = [&](const at::Tensor* slot) { return are_apart(gradient, *slot); };
  return are_apart(gradient, value) && std::all_of(slots.begin(), slots.end(), is_apart) ? gradient : at::Tensor();
}

bool descend(const at::Tensor& value, const at::Tensor& given, const at::Tensor& momentum, const at::Tensor& rate,
             const step_ops::MomentumRule& rule) {
  if (!is_plain_number(rate)) return false;
  const at::Tensor gradient = gradient_beside(value, {&momentum}, given);
  if (!gradient.defined()) return false;
  const double by = *rate.const_data_ptr<double>();
  with_type(value.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const MomentumNumbers<T> numbers{.factor = static_cast<T>(rule.factor),
                                     .decay = static_cast<T>(rule.decay),
                                     .rate = static_cast<T>(by),
                                     .decays = rule.decay != 0,
                                     .nesterov = rule.nesterov};
    T *const values = value.mutable_data_ptr<T>(), *const momenta = momentum.mutable_data_ptr<T>();
    const T* const gradients = gradient.const_data_ptr<T>();
    share_out(value.numel(), [&](int64_t at, int64_t count) {
      go_with_momentum(count, values + at, gradients + at, momenta + at, numbers);
    });
  });
  return true;
}

bool descend(const at::Tensor& value, const at::Tensor& given, const at::Tensor& mean, const at::Tensor& variance,
             const at::Tensor& steps, const at::Tensor& rate, const step_ops::AdamRule& rule) {
  if (!is_plain_number(rate) || !is_plain_number(steps)) return false;
  const at::Tensor gradient = gradient_beside(value, {&mean, &variance}, given);
  if (!gradient.defined()) return false;
  const double by = *rate.const_data_ptr<double>(), count = *steps.mutable_data_ptr<double>() += 1;
  const double correction1 = 1 - std::pow(rule.beta1, count), correction2 = std::sqrt(1 - std::pow(rule.beta2, count));
  with_type(value.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const AdamNumbers<T> numbers{.kept = static_cast<T>(rule.decoupled ? 1 - by * rule.decay : 1),
                                 .decay = static_cast<T>(rule.decay),
                                 .share_of_gradient = static_cast<T>(1 - rule.beta1),
                                 .beta2 = static_cast<T>(rule.beta2),
                                 .share_of_square = static_cast<T>(1 - rule.beta2),
                                 .correction = static_cast<T>(correction2),
                                 .epsilon = static_cast<T>(rule.epsilon),
                                 .rate = static_cast<T>(by / correction1),
                                 .decays = !rule.decoupled && rule.decay != 0};
    T *const values = value.mutable_data_ptr<T>(), *const means = mean.mutable_data_ptr<T>(),
             *const variances = variance.mutable_data_ptr<T>();
    const T* const gradients = gradient.const_data_ptr<T>();
    share_out(value.numel(), [&](int64_t at, int64_t elements) {
      go_with_adam(elements, values + at, gradients + at, means + at, variances + at, numbers);
    });
  });
  return true;
}

// ---- By their stacks
step_ops::MomentumRule rule_of_momentum(const std::vector<c10::IValue>& stack) {
  return {.factor = stack[4].toDouble(), .decay = stack[5].toDouble(), .nesterov = stack[6].toBool()};
}

bool momentum_of(std::vector<c10::IValue>& stack) {
  const step_ops::MomentumRule rule = rule_of_momentum(stack);
  if (!descend(stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor(), stack[3].toTensor(), rule)) return false;
  stack.resize(1);
  return true;
}

bool momentum_of_all(std::vector<c10::IValue>& stack) {
  const step_ops::MomentumRule rule = rule_of_momentum(stack);
  std::vector<at::Tensor> values = stack[0].toTensorVector(), momenta = stack[2].toTensorVector();
  const std::vector<at::Tensor> gradients = stack[1].toTensorVector();
  const at::Tensor& rate = stack[3].toTensor();
  if (gradients.size() != values.size() || momenta.size() != values.size()) return false;
  for (size_t i = 0; i < values.size(); ++i) {
    if (descend(values[i], gradients[i], momenta[i], rate, rule)) continue;
    step_ops::momentum_(values[i], gradients[i], momenta[i], rate, rule);
  }
  stack.clear();
  return true;
}

bool adam_of(std::vector<c10::IValue>& stack) {
  const step_ops::AdamRule rule{.beta1 = stack[6].toDouble(),
                                .beta2 = stack[7].toDouble(),
                                .epsilon = stack[8].toDouble(),
                                .decay = stack[9].toDouble(),
                                .decoupled = stack[10].toBool()};
  if (!descend(stack[0].toTensor(), stack[1].toTensor(), stack[2].toTensor(), stack[3].toTensor(), stack[4].toTensor(),
               stack[5].toTensor(), rule)) {
    return false;
  }
  stack.resize(1);
  return true;
}

}  // namespace

OnePass one_pass(std::string_view op_name) {
  static const auto& table = *new absl::flat_hash_map<std::string_view, OnePass>{
      {"muster_step::momentum_", &momentum_of},
      {"muster_step::momentum_all_", &momentum_of_all},
      {"muster_step::adam_", &adam_of},
  };
  const auto found = table.find(op_name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace muster
