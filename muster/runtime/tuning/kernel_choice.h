// Calls the fastest of libtorch's implementations of an op.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/graph/op_table.h"
#include "muster/runtime/tuning/autotuner.h"

namespace muster {

// How an op with images can be run: as recorded; with its images in channels-last order, which some kernels like better
// (on x86 max_pool2d is 16 times faster, on a GPU nearly everything in half precision); by libtorch's own convolution
// instead of oneDNN's (on arm64 its backward is 3 times faster); the gradient of a first layer's weights as one product
// of matrices (on x86 twice as fast); and convolutions of 3 x 3 by our own kernels with a quarter of the
// multiplications (winograd/convolution.h), whose images are in channels-last order, too. The results are equal up to
// rounding.
enum class Kernel : int8_t {
  kUndecided = -1,
  kRecorded = 0,
  kChannelsLast = 1,
  kNative = 2,
  kPatches = 3,
  kWinograd = 4
};

// What the choices of one program have to agree on: as soon as one of them wants channels-last images, all of them
// return such images, because an op with operands in two orders is slower than either.
using ImageOrder = std::atomic<bool>;  // true: channels last

// The choice for one instruction. The autotuner makes it at the first call, by running each candidate on the real
// operands unless it knows the answer, and once more when the program has come to want channels-last images.
// Thread-safe.
class KernelChoice {
 public:
  // Null if there is nothing to choose for this op, of which `kernels` says what is known (op_table.h). `tuner`
  // outlives the choice.
  static std::shared_ptr<KernelChoice> make(const c10::OperatorHandle& op, const ImageKernels* kernels,
                                            at::Device device, Autotuner& tuner,
                                            std::shared_ptr<ImageOrder> channels_last);

  // Calls the op: arguments on the stack are replaced by results.
  void call(std::vector<c10::IValue>& stack);

 private:
  KernelChoice(const c10::OperatorHandle& op, const ImageKernels& kernels, Autotuner& tuner,
               std::shared_ptr<ImageOrder> channels_last);

  // `channels_last`: the first result is wanted in that order.
  void call_with(Kernel kernel, std::vector<c10::IValue>& stack, bool channels_last) const;
  void call_native(std::vector<c10::IValue>& stack) const;
  Kernel choose(const std::vector<c10::IValue>& stack, bool channels_last) const;
  // Whether the kernel does what the op does with these operands, whatever they are.
  bool fits(Kernel kernel, const std::vector<c10::IValue>& stack) const;
  void call_winograd(std::vector<c10::IValue>& stack) const;
  std::string question(const std::vector<c10::IValue>& stack, bool channels_last) const;

  const c10::OperatorHandle op_;
  std::optional<c10::OperatorHandle> native_;  // libtorch's own convolution, where the op has one
  const ImageKernels& kernels_;
  Autotuner& tuner_;
  const std::shared_ptr<ImageOrder> channels_last_;
  std::atomic<Kernel> kernel_{Kernel::kUndecided};
  std::atomic<bool> for_channels_last_{false};  // it was measured with the result in that order
};

// The tensor in the order that ops expect unless they say otherwise.
at::Tensor in_usual_order(const at::Tensor& tensor);

}  // namespace muster
