// Convolutions of 3 x 3 with a quarter of the multiplications (kernels.h), and their gradients.
//
// Results differ from those of other kernels by rounding: errors are about 1e-6 of the size of the results, several
// times those of other kernels. An infinity or NaN also reaches elements of its tiles that are up to two away from
// those that it belongs to, and is never lost; numbers within a factor of about 100 of the largest float overflow.
//
// Images are taken and made in channels-last order. Beyond that a thread needs memory for a block of tiles, about
// 1 MiB (4 MiB for a thousand channels), and the weights are held in 36 instead of 9 numbers, by each thread for their
// gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>

#include "muster/runtime/winograd/kernels.h"

namespace muster {

// The fastest ones of this CPU, or null if that has none that would be of use.
const WinogradKernels* winograd_kernels();

// Stride, dilation and groups are one.
struct WinogradConvolution {
  int64_t pad_rows, pad_columns;
  const WinogradKernels& kernels;

  // REQUIRES of both: fits(image, weights); other operands are floats on the CPU, too, and have the sizes that go with
  // these, which nobody looks at here; and none has libtorch's negative bit.
  at::Tensor forward(const at::Tensor& image, const at::Tensor& weights, const at::Tensor& bias) const;
  // Of image, weights and bias, as far as wanted. The bias has as many numbers as the gradient channels.
  std::array<at::Tensor, 3> backward(const at::Tensor& gradient, const at::Tensor& image, const at::Tensor& weights,
                                     std::array<bool, 3> wanted) const;

  // Float on a CPU, windows of 3 x 3, and so few channels that the weights stay in a cache.
  bool fits(const at::Tensor& image, const at::Tensor& weights) const;
};

}  // namespace muster
