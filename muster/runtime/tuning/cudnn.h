// What cuDNN can do for ops that were recorded on a CPU.
#pragma once

#include <ATen/core/ivalue.h>

#include <string_view>
#include <vector>

namespace muster {

// While it lives, cuDNN measures its algorithms for each convolution that a thread comes to first, and keeps the
// fastest. Programs have fixed shapes, so that it is done once. libtorch has one switch for the process: eager code of
// other threads may measure meanwhile, too. The last one that goes leaves the switch as the first has found it.
class [[nodiscard]] MeasuredConvolutions {
 public:
  MeasuredConvolutions();
  ~MeasuredConvolutions();
  MeasuredConvolutions(const MeasuredConvolutions&) = delete;
  MeasuredConvolutions& operator=(const MeasuredConvolutions&) = delete;
};

// Calls cuDNN's batch norm, or its backward, in place of libtorch's own, as eager libtorch does for images in the usual
// order: 1.2 of 26 ms of a step of a ResNet-18 (H200, float32). What one saves for the backward the other understands.
// False, and nothing is done, where it does not fit.
bool normalize_by_cudnn(std::string_view op, std::vector<c10::IValue>& stack);

}  // namespace muster
