#include "muster/runtime/tuning/kernel_choice.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/strides.h>

#include <sstream>

#include "muster/runtime/ops/op_catalog.h"
#include "muster/runtime/tuning/cudnn.h"
#include "muster/runtime/winograd/convolution.h"

namespace muster {

namespace {

std::string_view name_of(Kernel kernel) {
  switch (kernel) {
    case Kernel::kChannelsLast: return "channels_last";
    case Kernel::kNative: return "native";
    case Kernel::kPatches: return "patches";
    case Kernel::kWinograd: return "winograd";
    default: return "recorded";
  }
}

bool leaves_channels_last(Kernel kernel) { return kernel == Kernel::kChannelsLast || kernel == Kernel::kWinograd; }

bool is_image(const c10::IValue& value) {
  return value.isTensor() && value.toTensor().defined() && value.toTensor().dim() == 4;
}

// One number stands for both dimensions.
std::vector<int64_t> of_two(const c10::IValue& value) {
  std::vector<int64_t> both = value.toIntVector();
  if (both.size() == 1) both.push_back(both[0]);
  return both;
}

bool all_equal(const std::vector<int64_t>& values, int64_t expected) {
  for (int64_t value : values) {
    if (value != expected) return false;
  }
  return true;
}

bool are_floats_here(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.scalar_type() == at::kFloat;
}

// Whether it is a convolution of images, or with a gradient in front (shift: 1) its backward, that is not transposed,
// has no groups and no dilation, and whose operands have the sizes and types that it needs. The op that was recorded
// looks at its operands; kernels that are called in its place do not, and whoever has made the program may call it with
// any.
bool is_usual_convolution(const std::vector<c10::IValue>& stack, size_t shift) {
  constexpr int64_t kMostPixels = 1 << 30;  // of an image's side and of padding; sums of them do not overflow
  constexpr double kMostElements = 1e15;
  // convolution: input, weight, bias, stride, padding, dilation, transposed, output_padding, groups; its backward has
  // the sizes of the bias in place of the bias, and ends with the gradients that are wanted.
  for (size_t i = 0; i < shift + 2; ++i) {
    if (!is_image(stack[i]) || !are_floats_here(stack[i].toTensor()) || stack[i].toTensor().numel() == 0) return false;
  }
  const at::Tensor &image = stack[shift].toTensor(), &weights = stack[1 + shift].toTensor();
  const std::vector<int64_t> stride = of_two(stack[3 + shift]), padding = of_two(stack[4 + shift]),
                             dilation = of_two(stack[5 + shift]);
  if (stride.size() != 2 || padding.size() != 2 || dilation.size() != 2 || !all_equal(dilation, 1) ||
      stack[6 + shift].toBool() || stack[8 + shift].toInt() != 1 || image.size(1) != weights.size(1)) {
    return false;
  }
  std::vector<int64_t> output = {image.size(0), weights.size(0)};
  double elements = static_cast<double>(output[0]) * static_cast<double>(output[1]);
  for (int i : {0, 1}) {
    const int64_t side = image.size(2 + i), window = weights.size(2 + i);
    if (side > kMostPixels || padding[i] < 0 || padding[i] > kMostPixels || stride[i] < 1) return false;
    if (side + 2 * padding[i] < window) return false;
    output.push_back((side + 2 * padding[i] - window) / stride[i] + 1);
    elements *= static_cast<double>(output.back());
  }
  if (elements > kMostElements) return false;
  if (shift == 1) return stack[0].toTensor().sizes() == output && stack[10].toBoolList().size() == 3;
  if (!stack[2].isTensor() || !stack[2].toTensor().defined()) return true;
  const at::Tensor& bias = stack[2].toTensor();
  return are_floats_here(bias) && bias.dim() == 1 && bias.size(0) == weights.size(0);
}

// The image in channels-last order, with the strides of that order even where its sizes leave them open: libtorch takes
// an image of one channel with the usual strides for one in the usual order, and makes all others like it.
at::Tensor in_channels_last_order(const at::Tensor& image) {
  const at::Tensor ordered = image.contiguous(at::MemoryFormat::ChannelsLast);
  const std::vector<int64_t> strides = c10::get_channels_last_strides_2d(ordered.sizes());
  return ordered.strides() == c10::IntArrayRef(strides) ? ordered : ordered.as_strided(ordered.sizes(), strides);
}

// The stack of a convolution_backward that is asked for the gradients of weights and bias only. Each column of one
// matrix is the patch of the input that an element of the output was made of, and a one for the bias; each row of the
// other is that element's gradient in every output channel.
void multiply_patches(std::vector<c10::IValue>& stack) {
  const at::Tensor gradient = in_channels_last_order(stack[0].toTensor());
  const at::Tensor& weights = stack[2].toTensor();
  const std::vector<int64_t> stride = of_two(stack[4]), padding = of_two(stack[5]);
  const auto wanted = stack[10].toBoolList();
  at::Tensor input = stack[1].toTensor();
  if (!all_equal(padding, 0)) {
    input = at::constant_pad_nd(input, {padding[1], padding[1], padding[0], padding[0]});
  }
  const at::Tensor windows =
      input.unfold(2, weights.size(2), stride[0]).unfold(3, weights.size(3), stride[1]).permute({1, 4, 5, 0, 2, 3});
  const int64_t elements_of_patch = weights.numel() / weights.size(0);
  const int64_t patches = gradient.numel() / gradient.size(1);
  at::Tensor matrix = at::empty({elements_of_patch + 1, patches}, input.options());
  matrix.narrow(0, 0, elements_of_patch).view(windows.sizes()).copy_(windows);
  matrix.select(0, elements_of_patch).fill_(1);
  const at::Tensor product = at::mm(matrix, gradient.permute({0, 2, 3, 1}).reshape({patches, gradient.size(1)}));
  at::Tensor of_weights, of_bias;
  if (wanted[1]) of_weights = product.narrow(0, 0, elements_of_patch).t().reshape(weights.sizes());
  if (wanted[2]) of_bias = product.select(0, elements_of_patch).clone();
  stack = {at::Tensor(), of_weights, of_bias};
}

// The last argument of a copy is the order of its result.
void copy_in_order(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack, bool channels_last) {
  if (channels_last && is_image(stack[0]) && stack.back().isNone()) {
    stack.back() = static_cast<int64_t>(at::MemoryFormat::ChannelsLast);
  }
  op.callBoxed(stack);
}

// REQUIRES: is_usual_convolution(stack, shift).
WinogradConvolution winograd_of(const std::vector<c10::IValue>& stack, size_t shift) {
  const std::vector<int64_t> padding = of_two(stack[4 + shift]);
  return {.pad_rows = padding[0], .pad_columns = padding[1], .kernels = *winograd_kernels()};
}

}  // namespace

std::shared_ptr<KernelChoice> KernelChoice::make(const c10::OperatorHandle& op, const ImageKernels* kernels,
                                                 at::Device device, Autotuner& tuner,
                                                 std::shared_ptr<ImageOrder> channels_last) {
  if (kernels == nullptr || (kernels->follows_on_gpus && device.is_cpu())) return nullptr;
  return std::shared_ptr<KernelChoice>(new KernelChoice(op, *kernels, tuner, std::move(channels_last)));
}

KernelChoice::KernelChoice(const c10::OperatorHandle& op, const ImageKernels& kernels, Autotuner& tuner,
                           std::shared_ptr<ImageOrder> channels_last)
    : op_(op), kernels_(kernels), tuner_(tuner), channels_last_(std::move(channels_last)) {
  if (!kernels.native.empty()) native_ = known_op(kernels.native);
}

void KernelChoice::call(std::vector<c10::IValue>& stack) {
  const bool channels_last = channels_last_->load(std::memory_order_relaxed);
  if (kernels_.follows_on_gpus) {
    if (kernels_.images.empty()) return copy_in_order(op_, stack, channels_last);
    if (!channels_last && normalize_by_cudnn(op_.operator_name().name, stack)) return;
    return call_with(channels_last ? Kernel::kChannelsLast : Kernel::kRecorded, stack, channels_last);
  }
  Kernel kernel = kernel_.load(std::memory_order_relaxed);
  // One that was chosen before others wanted channels-last images was chosen without the cost of making them.
  const bool outdated = channels_last && !leaves_channels_last(kernel) && !for_channels_last_;
  if (kernel == Kernel::kUndecided || outdated) {
    kernel = choose(stack, channels_last);
    kernel_.store(kernel, std::memory_order_relaxed);
    for_channels_last_.store(channels_last, std::memory_order_relaxed);
    if (leaves_channels_last(kernel)) channels_last_->store(true, std::memory_order_relaxed);
  }
  call_with(kernel, stack, channels_last);
}

bool KernelChoice::fits(Kernel kernel, const std::vector<c10::IValue>& stack) const {
  constexpr int64_t kLargestPatch = 64;  // each element of the input is copied for almost every element of a patch
  constexpr int64_t kLeastChannels = 8;  // with fewer, it takes longer to make factors than to multiply
  if (kernel == Kernel::kRecorded || kernel == Kernel::kChannelsLast) return true;
  const size_t shift = kernels_.images.size() - 1;
  if (!native_ || !is_usual_convolution(stack, shift)) return false;
  const at::Tensor &image = stack[shift].toTensor(), &weights = stack[1 + shift].toTensor();
  switch (kernel) {
    case Kernel::kNative: return true;
    case Kernel::kPatches:
      return shift == 1 && !stack[10].toBoolList()[0] && weights.numel() / weights.size(0) <= kLargestPatch;
    case Kernel::kWinograd:
      return winograd_kernels() != nullptr && all_equal(of_two(stack[3 + shift]), 1) &&
             image.size(1) >= kLeastChannels && weights.size(0) >= kLeastChannels &&
             winograd_of(stack, shift).fits(image, weights);
    default: return false;
  }
}

void KernelChoice::call_winograd(std::vector<c10::IValue>& stack) const {
  const size_t shift = kernels_.images.size() - 1;
  const WinogradConvolution convolution = winograd_of(stack, shift);
  // What is read below libtorch's dispatcher has to have its sign in its memory.
  auto operand = [&stack](size_t position) { return stack[position].toTensor().resolve_neg(); };
  if (shift == 0) {
    const at::Tensor bias = stack[2].isTensor() ? stack[2].toTensor() : at::Tensor();
    stack = {convolution.forward(operand(0), operand(1), bias)};
  } else {
    const auto wanted = stack[10].toBoolList();
    const std::array<at::Tensor, 3> gradients =
        convolution.backward(operand(0), operand(1), operand(2), {wanted[0], wanted[1], wanted[2]});
    stack = {gradients[0], gradients[1], gradients[2]};
  }
}

void KernelChoice::call_with(Kernel kernel, std::vector<c10::IValue>& stack, bool channels_last) const {
  // An argument of any size may have come in another one since the choice was made.
  if (!fits(kernel, stack)) kernel = Kernel::kRecorded;
  if (kernel == Kernel::kPatches) return multiply_patches(stack);
  if (kernel == Kernel::kWinograd) return call_winograd(stack);
  for (int position : kernels_.images) {
    if (!is_image(stack[position])) continue;
    const at::Tensor& image = stack[position].toTensor();
    stack[position] = kernel == Kernel::kChannelsLast ? in_channels_last_order(image) : in_usual_order(image);
  }
  // On GPUs libtorch takes weights in channels-last order for a wish that the images be in it, too.
  const size_t weights = kernels_.images.size();
  if (native_ && kernel != Kernel::kChannelsLast && is_image(stack[weights]) && stack[weights].toTensor().is_cuda()) {
    stack[weights] = in_usual_order(stack[weights].toTensor());
  }
  std::optional<MeasuredConvolutions> measured;
  if (native_ && stack[0].toTensor().is_cuda() && tuner_.measures()) measured.emplace();
  kernel == Kernel::kNative ? call_native(stack) : op_.callBoxed(stack);
  if (channels_last && is_image(stack[0])) stack[0] = in_channels_last_order(stack[0].toTensor());
}

void KernelChoice::call_native(std::vector<c10::IValue>& stack) const {
  std::vector<c10::IValue> native;
  if (kernels_.images.size() == 1) {
    native = {stack[0], stack[1],         stack[1].toTensor().sizes().slice(2).vec(),
              stack[2], of_two(stack[3]), of_two(stack[4])};
  } else {
    native = {stack[0],         stack[1],         stack[2], stack[2].toTensor().sizes().slice(2).vec(),
              of_two(stack[4]), of_two(stack[5]), stack[10]};
  }
  native_->callBoxed(native);
  stack = std::move(native);
}

std::string KernelChoice::question(const std::vector<c10::IValue>& stack, bool channels_last) const {
  std::ostringstream text;
  text << op_.operator_name().name;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      text << ' ';
      if (value.toTensor().defined()) text << value.toTensor().dtype() << value.toTensor().sizes();
    } else if (value.isInt() || value.isBool() || value.isIntList() || value.isBoolList()) {
      text << ' ' << value;
    }
  }
  if (channels_last) text << " to channels last";
  return text.str();
}

Kernel KernelChoice::choose(const std::vector<c10::IValue>& stack, bool channels_last) const {
  if (!is_image(stack[0])) return Kernel::kRecorded;
  // The kernels of GPUs for channels-last images are those of half precision.
  if (stack[0].toTensor().is_cuda() && !at::isReducedFloatingType(stack[0].toTensor().scalar_type())) {
    return Kernel::kRecorded;
  }
  std::vector<Kernel> kernels;
  for (Kernel kernel :
       {Kernel::kRecorded, Kernel::kChannelsLast, Kernel::kNative, Kernel::kPatches, Kernel::kWinograd}) {
    if (fits(kernel, stack)) kernels.push_back(kernel);
  }
  TuningQuestion question{
      .what = this->question(stack, channels_last), .device = stack[0].toTensor().device(), .alternatives = {}};
  for (Kernel kernel : kernels) {
    question.alternatives.push_back({name_of(kernel), [this, &stack, kernel, channels_last] {
                                       std::vector<c10::IValue> copy = stack;
                                       call_with(kernel, copy, channels_last);
                                       return std::vector<at::Tensor>();
                                     }});
  }
  return kernels[tuner_.choose(question)];
}

at::Tensor in_usual_order(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const at::Tensor ordered = tensor.contiguous();
  const c10::DimVector strides = c10::contiguous_strides(ordered.sizes());
  return ordered.strides() == c10::IntArrayRef(strides) ? ordered : ordered.as_strided(ordered.sizes(), strides);
}

}  // namespace muster
