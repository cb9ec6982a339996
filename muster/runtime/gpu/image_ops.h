// Ops for images on GPUs that are one kernel or two of our own where libtorch has several (image_kernels.h). They are
// registered with libtorch's dispatcher as muster_image::…, but no program has them: a plan calls them in place of what
// was recorded (fused_images.h). Operands that the kernels do not take, those of CPUs among them, go to libtorch's ops.
//
//   normalize(…as native_batch_norm, Tensor? other, bool relu)
//       -> what relu makes of the sum of batch norm's result and the other tensor; mean and invstd; which numbers were
//          positive, in a form that only the next op knows
//   normalize_backward(…as native_batch_norm_backward, Tensor? more, Tensor? result, Tensor? positive, bool keep)
//       -> the gradients of input, weight and bias, and if it is to be kept that of the other tensor. `more` is added
//          to the gradient, and `result` is what relu has made.
//   max_pool(…as max_pool2d_with_indices), max_pool_backward(…as max_pool2d_with_indices_backward)
//       whose indices only the two of them know.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>

namespace muster::image_ops {

// Whether the kernels are in this build, and run on that device.
bool run_on(at::Device device);

struct Ops {
  c10::OperatorHandle normalize, normalize_backward, max_pool, max_pool_backward;
};
const Ops& all();

}  // namespace muster::image_ops
