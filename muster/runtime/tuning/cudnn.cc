#include "muster/runtime/tuning/cudnn.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include "muster/runtime/ops/op_catalog.h"

namespace muster {
namespace {

constexpr double kLeastEpsilon = 1e-5;  // that every cuDNN takes

bool float_vector(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().scalar_type() == at::kFloat;
}

bool usual_image(const c10::IValue& value) {
  const at::Tensor& image = value.toTensor();
  return image.is_cuda() && image.dim() == 4 && image.scalar_type() == at::kFloat && image.numel() > 0 &&
         image.is_contiguous();
}

absl::Mutex switch_mu(absl::kConstInit);
int measuring ABSL_GUARDED_BY(switch_mu) = 0;
bool found_switch ABSL_GUARDED_BY(switch_mu) = false;

}  // namespace

MeasuredConvolutions::MeasuredConvolutions() {
  absl::MutexLock lock(&switch_mu);
  if (measuring++ > 0) return;
  found_switch = at::globalContext().benchmarkCuDNN();
  at::globalContext().setBenchmarkCuDNN(true);
}

MeasuredConvolutions::~MeasuredConvolutions() {
  absl::MutexLock lock(&switch_mu);
  if (--measuring == 0) at::globalContext().setBenchmarkCuDNN(found_switch);
}

bool normalize_by_cudnn(std::string_view op, std::vector<c10::IValue>& stack) {
  if (!at::globalContext().userEnabledCuDNN() || !at::globalContext().hasCuDNN()) return false;
  if (op == "aten::native_batch_norm") {
    // input, weight, bias, running_mean, running_var, training, momentum, eps
    const bool fits = usual_image(stack[0]) && float_vector(stack[1]) && float_vector(stack[2]) &&
                      float_vector(stack[3]) && float_vector(stack[4]) && stack[5].toBool() &&
                      stack[7].toDouble() >= kLeastEpsilon;
    if (!fits) return false;
    static const c10::OperatorHandle forward = known_op("aten::cudnn_batch_norm");
    forward.callBoxed(&stack);
    stack.resize(3);  // what it keeps besides is empty in this order
    return true;
  }
  if (op != "aten::native_batch_norm_backward") return false;
  // grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, output_mask
  const bool fits = usual_image(stack[0]) && usual_image(stack[1]) && float_vector(stack[2]) &&
                    float_vector(stack[3]) && float_vector(stack[4]) && float_vector(stack[5]) &&
                    float_vector(stack[6]) && stack[7].toBool() && stack[8].toDouble() >= kLeastEpsilon;
  if (!fits) return false;
  const at::Tensor kept = at::empty({0}, stack[0].toTensor().options().dtype(at::kByte));
  static const c10::OperatorHandle backward = known_op("aten::cudnn_batch_norm_backward");
  stack = {stack[1], stack[0], stack[2], stack[3], stack[4], stack[5], stack[6], stack[8], kept};
  backward.callBoxed(&stack);
  return true;
}

}  // namespace muster
