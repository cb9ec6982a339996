#include "muster/runtime/gpu/image_ops.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/threshold_backward.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <tuple>

#include "muster/base/status.h"
#include "muster/runtime/gpu/image_kernels.h"
#include "muster/runtime/memory/tensors.h"

#ifdef MUSTER_CUDA_KERNELS
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace muster::image_ops {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

std::string described(const at::Tensor& tensor) {
  return tensor.defined() ? spec_of(tensor).to_string() : std::string("no tensor");
}

// libtorch's kernels read as many as there are channels.
void check_channels(const OptionalTensor& tensor, const char* name, const at::Tensor& input) {
  if (!tensor || !tensor->defined()) return;
  if (input.dim() >= 2 && tensor->dim() == 1 && tensor->size(0) == input.size(1)) return;
  throw invalid_argument(name, " is ", described(*tensor), ", expected a number for each channel of ",
                         described(input));
}

void check_sizes(const OptionalTensor& tensor, const char* name, const at::Tensor& like) {
  if (!tensor || !tensor->defined() || tensor->sizes() == like.sizes()) return;
  throw invalid_argument(name, " is ", described(*tensor), ", expected the sizes of ", described(like));
}

#ifdef MUSTER_CUDA_KERNELS

namespace kernels = image_kernels;

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_neg() && !tensor._is_zerotensor();
}

bool is_float_vector(const OptionalTensor& tensor, at::Device device) {
  return !tensor || !tensor->defined() ||
         (is_plain(*tensor) && tensor->device() == device && tensor->scalar_type() == at::kFloat &&
          tensor->is_contiguous());
}

float* floats_of(const OptionalTensor& tensor) {
  return tensor && tensor->defined() ? static_cast<float*>(tensor->data_ptr()) : nullptr;
}

void* current_stream(at::Device device) { return c10::cuda::getCurrentCUDAStream(device.index()).stream(); }

// As libtorch says it, so that a lost context is known as one.
void check_launch(int error) { C10_CUDA_CHECK(static_cast<cudaError_t>(error)); }

std::optional<kernels::Number> number_of(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kFloat) return kernels::Number::kFloat;
  if (tensor.scalar_type() == at::kBFloat16) return kernels::Number::kBfloat16;
  return std::nullopt;
}

// A kernel loads 16 bytes at a time; a view may begin anywhere.
bool is_aligned(const at::Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0; }

// Both orders are the same for one channel, and for one pixel.
bool is_channels_last(const at::Tensor& image) {
  if (image.dim() == 2) return image.is_contiguous();
  return image.dim() == 4 && image.size(1) > 1 && image.is_contiguous(at::MemoryFormat::ChannelsLast);
}

// How the input lies, if there are kernels for it.
std::optional<kernels::Shape> shape_of(const at::Tensor& input) {
  if (!input.defined() || !run_on(input.device()) || !is_plain(input) || input.dim() < 2 || input.numel() == 0)
    return {};
  const std::optional<kernels::Number> number = number_of(input);
  const bool last = is_channels_last(input);
  if (!number || (!last && !input.is_contiguous()) || !is_aligned(input)) return {};
  kernels::Shape shape{.number = *number,
                       .channels_last = last,
                       .images = input.size(0),
                       .channels = input.size(1),
                       .pixels = input.numel() / (input.size(0) * input.size(1))};
  if (kernels::numbers_at_a_time(shape) == 0) return {};
  return shape;
}

// The tensor as it lies in memory like the input; nothing if it is of another kind. REQUIRES: it has the input's sizes.
std::optional<at::Tensor> like(const at::Tensor& tensor, const at::Tensor& input, const kernels::Shape& shape) {
  if (!is_plain(tensor) || tensor.device() != input.device() || tensor.scalar_type() != input.scalar_type()) return {};
  const bool last = shape.channels_last && input.dim() == 4;
  at::Tensor ordered = tensor.contiguous(last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
  return is_aligned(ordered) ? std::optional(ordered) : std::nullopt;
}

at::Tensor empty_floats(int64_t count, const at::Tensor& input) {
  return at::empty({count}, input.options().dtype(at::kFloat));
}

// REQUIRES of this and the next: sizes were checked.
using Normalized = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
std::optional<Normalized> normalize_here(const at::Tensor& input, const OptionalTensor& weight,
                                         const OptionalTensor& bias, const OptionalTensor& running_mean,
                                         const OptionalTensor& running_var, double momentum, double epsilon,
                                         const OptionalTensor& other, bool relu) {
  const std::optional<kernels::Shape> shape = shape_of(input);
  if (!shape) return {};
  for (const OptionalTensor* vector : {&weight, &bias, &running_mean, &running_var}) {
    if (!is_float_vector(*vector, input.device())) return {};
  }
  at::Tensor added;
  if (other && other->defined()) {
    const std::optional<at::Tensor> ordered =
        other->sizes() == input.sizes() ? like(*other, input, *shape) : std::nullopt;
    if (!ordered) return {};
    added = *ordered;
  }
  const c10::DeviceGuard guard(input.device());  // the workspace depends on it
  const at::Tensor output = at::empty_like(input, at::MemoryFormat::Preserve),
                   mean = empty_floats(shape->channels, input), invstd = empty_floats(shape->channels, input),
                   space = empty_floats(kernels::workspace(*shape), input);
  at::Tensor positive;
  if (relu) {
    positive = at::empty({input.numel() / kernels::numbers_at_a_time(*shape)}, input.options().dtype(at::kByte));
  }
  check_launch(kernels::normalize(*shape,
                                  {.input = input.const_data_ptr(),
                                   .other = added.defined() ? added.const_data_ptr() : nullptr,
                                   .relu = relu,
                                   .weight = floats_of(weight),
                                   .bias = floats_of(bias),
                                   .running_mean = floats_of(running_mean),
                                   .running_var = floats_of(running_var),
                                   .momentum = static_cast<float>(momentum),
                                   .epsilon = static_cast<float>(epsilon),
                                   .output = output.data_ptr(),
                                   .mean = floats_of(mean),
                                   .invstd = floats_of(invstd),
                                   .positive = relu ? static_cast<uint8_t*>(positive.data_ptr()) : nullptr,
                                   .workspace = floats_of(space)},
                                  current_stream(input.device())));
  return Normalized{output, mean, invstd, positive};
}

std::optional<Normalized> normalize_backward_here(const at::Tensor& gradient, const at::Tensor& input,
                                                  const OptionalTensor& weight, const OptionalTensor& mean,
                                                  const OptionalTensor& invstd, std::array<bool, 3> wanted,
                                                  const OptionalTensor& more, bool relu, const OptionalTensor& positive,
                                                  bool keep) {
  const std::optional<kernels::Shape> shape = shape_of(input);
  if (!shape || !mean || !mean->defined() || !invstd || !invstd->defined()) return {};
  for (const OptionalTensor* vector : {&weight, &mean, &invstd}) {
    if (!is_float_vector(*vector, input.device())) return {};
  }
  if (relu) {
    const int64_t bytes = input.numel() / kernels::numbers_at_a_time(*shape);
    if (!positive || !positive->defined() || positive->scalar_type() != at::kByte || positive->numel() != bytes ||
        positive->device() != input.device() || !positive->is_contiguous()) {
      return {};
    }
  }
  const std::optional<at::Tensor> first = like(gradient, input, *shape);
  std::optional<at::Tensor> second;
  if (more && more->defined()) {
    second = like(*more, input, *shape);
    if (!second) return {};
  }
  if (!first) return {};
  const c10::DeviceGuard guard(input.device());  // the workspace depends on it
  const at::Tensor space = empty_floats(kernels::workspace(*shape), input);
  at::Tensor of_input, of_weight, of_bias, kept;
  if (wanted[0]) of_input = at::empty_like(input, at::MemoryFormat::Preserve);
  if (wanted[1]) of_weight = empty_floats(shape->channels, input);
  if (wanted[2]) of_bias = empty_floats(shape->channels, input);
  if (keep) kept = at::empty_like(input, at::MemoryFormat::Preserve);
  check_launch(
      kernels::normalize_backward(*shape,
                                  {.gradient = first->const_data_ptr(),
                                   .more = second ? second->const_data_ptr() : nullptr,
                                   .positive = relu ? static_cast<const uint8_t*>(positive->const_data_ptr()) : nullptr,
                                   .input = input.const_data_ptr(),
                                   .weight = floats_of(weight),
                                   .mean = floats_of(mean),
                                   .invstd = floats_of(invstd),
                                   .kept = keep ? kept.data_ptr() : nullptr,
                                   .input_gradient = wanted[0] ? of_input.data_ptr() : nullptr,
                                   .weight_gradient = floats_of(of_weight),
                                   .bias_gradient = floats_of(of_bias),
                                   .workspace = floats_of(space)},
                                  current_stream(input.device())));
  return Normalized{of_input, of_weight, of_bias, kept};
}

#else

using Normalized = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

#endif

Normalized normalize(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                     const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                     double momentum, double epsilon, const OptionalTensor& other, bool relu) {
  check_channels(weight, "weight", input);
  check_channels(bias, "bias", input);
  check_channels(running_mean, "running_mean", input);
  check_channels(running_var, "running_var", input);
  if (!training) throw internal("normalize is for training");
#ifdef MUSTER_CUDA_KERNELS
  if (auto done = normalize_here(input, weight, bias, running_mean, running_var, momentum, epsilon, other, relu)) {
    return *done;
  }
#endif
  auto [output, mean, invstd] =
      at::native_batch_norm(input, weight, bias, running_mean, running_var, training, momentum, epsilon);
  if (other && other->defined()) output = at::add(output, *other);
  if (relu) output = at::relu(output);
  return {output, mean, invstd, at::Tensor()};
}

Normalized normalize_backward(const at::Tensor& grad_out, const at::Tensor& input, const OptionalTensor& weight,
                              const OptionalTensor& running_mean, const OptionalTensor& running_var,
                              const OptionalTensor& save_mean, const OptionalTensor& save_invstd, bool train,
                              double epsilon, std::array<bool, 3> output_mask, const OptionalTensor& more,
                              const OptionalTensor& result, [[maybe_unused]] const OptionalTensor& positive,
                              bool keep) {
  const bool relu = result && result->defined();
  check_channels(weight, "weight", input);
  check_channels(running_mean, "running_mean", input);
  check_channels(running_var, "running_var", input);
  check_channels(save_mean, "save_mean", input);
  check_channels(save_invstd, "save_invstd", input);
  check_sizes(result, "result", input);
  // A summand may be of one channel or image; their sum has the input's sizes.
  const bool has_more = more && more->defined();
  const bool is_summed = has_more && (more->sizes() != input.sizes() || grad_out.sizes() != input.sizes());
  at::Tensor gradient = is_summed ? at::add(grad_out, *more) : grad_out;
  const OptionalTensor summand = is_summed ? OptionalTensor() : more;
  check_sizes(gradient, "the gradient", input);
  const bool has_statistics = save_mean && save_mean->defined() && save_invstd && save_invstd->defined();
  if (!train || !has_statistics)
    throw invalid_argument("normalize_backward is for training, with save_mean and save_invstd");
#ifdef MUSTER_CUDA_KERNELS
  if (auto done = normalize_backward_here(gradient, input, weight, save_mean, save_invstd, output_mask, summand, relu,
                                          positive, keep)) {
    return *done;
  }
#endif
  if (summand && summand->defined()) gradient = at::add(gradient, *summand);
  if (relu) gradient = at::threshold_backward(gradient, *result, 0);
  auto [of_input, of_weight, of_bias] = at::native_batch_norm_backward(
      gradient, input, weight, running_mean, running_var, save_mean, save_invstd, train, epsilon, output_mask);
  return {of_input, of_weight, of_bias, keep ? gradient : at::Tensor()};
}

#ifdef MUSTER_CUDA_KERNELS

// One number stands for both dimensions, and none for the default.
std::array<int64_t, 2> both(at::IntArrayRef numbers, std::array<int64_t, 2> otherwise) {
  if (numbers.empty()) return otherwise;
  return {numbers[0], numbers.back()};
}

int64_t windows_along(int64_t size, int64_t window, int64_t stride, int64_t padding, int64_t dilation, bool ceil_mode) {
  const int64_t room = size + 2 * padding - dilation * (window - 1) - 1;
  if (room < 0) return 0;
  int64_t count = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  if (ceil_mode && (count - 1) * stride >= size + padding) --count;  // none begins behind the input
  return count;
}

// How windows lie over the image, if there are kernels for it.
std::optional<kernels::Windows> windows_of(const at::Tensor& image, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                           at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
  constexpr int64_t kMost = 1 << 15, kMostPlaces = 255, kMostNumbers = (int64_t{1} << 31) - 1;
  if (!image.defined() || image.dim() != 4 || image.numel() > kMostNumbers || kernel_size.empty()) return {};
  const std::optional<kernels::Shape> shape = shape_of(image);
  if (!shape) return {};
  const std::array<int64_t, 2> size = both(kernel_size, {1, 1}), step = both(stride, size), pad = both(padding, {0, 0}),
                               apart = both(dilation, {1, 1});
  std::array<int64_t, 2> count{};
  for (int i : {0, 1}) {
    const bool usual = size[i] >= 1 && size[i] <= kMostPlaces && step[i] >= 1 && step[i] <= kMost && pad[i] >= 0 &&
                       pad[i] <= size[i] / 2 && apart[i] >= 1 && apart[i] <= kMost && image.size(2 + i) <= kMost;
    if (!usual) return {};
    count[i] = windows_along(image.size(2 + i), size[i], step[i], pad[i], apart[i], ceil_mode);
    if (count[i] < 1) return {};
  }
  const int64_t planes = image.size(0) * image.size(1);
  if (size[0] * size[1] > kMostPlaces || planes * count[0] > kMostNumbers / count[1]) return {};
  auto whole = [](int64_t number) { return static_cast<int>(number); };
  return kernels::Windows{.number = shape->number,
                          .channels_last = shape->channels_last,
                          .images = whole(image.size(0)),
                          .channels = whole(image.size(1)),
                          .rows = whole(image.size(2)),
                          .columns = whole(image.size(3)),
                          .output_rows = whole(count[0]),
                          .output_columns = whole(count[1]),
                          .height = whole(size[0]),
                          .width = whole(size[1]),
                          .row_stride = whole(step[0]),
                          .column_stride = whole(step[1]),
                          .row_padding = whole(pad[0]),
                          .column_padding = whole(pad[1]),
                          .row_dilation = whole(apart[0]),
                          .column_dilation = whole(apart[1])};
}

at::MemoryFormat format_of(const kernels::Windows& windows) {
  return windows.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

std::vector<int64_t> pooled_sizes(const kernels::Windows& windows) {
  return {windows.images, windows.channels, windows.output_rows, windows.output_columns};
}

#endif

std::tuple<at::Tensor, at::Tensor> max_pool(const at::Tensor& self, at::IntArrayRef kernel_size, at::IntArrayRef stride,
                                            at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode) {
#ifdef MUSTER_CUDA_KERNELS
  if (const auto windows = windows_of(self, kernel_size, stride, padding, dilation, ceil_mode)) {
    const std::vector<int64_t> sizes = pooled_sizes(*windows);
    const at::Tensor output = at::empty(sizes, self.options(), format_of(*windows)),
                     places = at::empty(sizes, self.options().dtype(at::kByte), format_of(*windows));
    const c10::DeviceGuard guard(self.device());
    check_launch(image_kernels::max_pool(*windows, self.const_data_ptr(), output.data_ptr(),
                                         static_cast<uint8_t*>(places.data_ptr()), current_stream(self.device())));
    return {output, places};
  }
#endif
  return at::max_pool2d_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode);
}

at::Tensor max_pool_backward(const at::Tensor& grad_output, const at::Tensor& self, at::IntArrayRef kernel_size,
                             at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool ceil_mode,
                             const at::Tensor& indices) {
  check_sizes(indices, "indices", grad_output);
  if (indices.scalar_type() != at::kByte) {
    if (grad_output.dim() < 2 || self.dim() != grad_output.dim() ||
        grad_output.sizes().slice(0, self.dim() - 2) != self.sizes().slice(0, self.dim() - 2)) {
      throw invalid_argument("grad_output is ", described(grad_output), ", expected images as many as those of ",
                             described(self));
    }
    return at::max_pool2d_with_indices_backward(grad_output, self, kernel_size, stride, padding, dilation, ceil_mode,
                                                indices);
  }
#ifdef MUSTER_CUDA_KERNELS
  const auto windows = windows_of(self, kernel_size, stride, padding, dilation, ceil_mode);
  if (windows && grad_output.sizes() == at::IntArrayRef(pooled_sizes(*windows)) && is_plain(grad_output) &&
      indices.device() == self.device() && indices.is_contiguous(format_of(*windows))) {
    if (const auto gradient = grad_output.scalar_type() == self.scalar_type() && grad_output.device() == self.device()
                                  ? std::optional(grad_output.contiguous(format_of(*windows)))
                                  : std::nullopt;
        gradient && is_aligned(*gradient)) {
      const at::Tensor of_input = at::empty(self.sizes(), self.options(), format_of(*windows));
      const c10::DeviceGuard guard(self.device());
      check_launch(image_kernels::max_pool_backward(*windows, gradient->const_data_ptr(),
                                                    static_cast<const uint8_t*>(indices.const_data_ptr()),
                                                    of_input.data_ptr(), current_stream(self.device())));
      return of_input;
    }
  }
#endif
  throw invalid_argument("the gradient of max_pool is ", described(grad_output), " for ", described(self),
                         ", which is not what it has pooled");
}

}  // namespace

bool run_on([[maybe_unused]] at::Device device) {
#ifdef MUSTER_CUDA_KERNELS
  return device.is_cuda() && image_kernels::run_on(device.index());
#else
  return false;
#endif
}

const Ops& all() {
  auto find = [](const char* name) { return c10::Dispatcher::singleton().findSchemaOrThrow(name, ""); };
  static const Ops ops{find("muster_image::normalize"), find("muster_image::normalize_backward"),
                       find("muster_image::max_pool"), find("muster_image::max_pool_backward")};
  return ops;
}

TORCH_LIBRARY(muster_image, library) {
  library.def(
      "normalize(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
      "bool training, float momentum, float eps, Tensor? other, bool relu) -> (Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "normalize_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, Tensor? running_var, "
      "Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] output_mask, Tensor? more, "
      "Tensor? result, Tensor? positive, bool keep) -> (Tensor, Tensor, Tensor, Tensor)");
  library.def(
      "max_pool(Tensor self, int[] kernel_size, int[] stride, int[] padding, int[] dilation, bool ceil_mode) "
      "-> (Tensor, Tensor)");
  library.def(
      "max_pool_backward(Tensor grad_output, Tensor self, int[] kernel_size, int[] stride, int[] padding, "
      "int[] dilation, bool ceil_mode, Tensor indices) -> Tensor");
}

TORCH_LIBRARY_IMPL(muster_image, CompositeExplicitAutograd, library) {
  library.impl("normalize", normalize);
  library.impl("normalize_backward", normalize_backward);
  library.impl("max_pool", max_pool);
  library.impl("max_pool_backward", max_pool_backward);
}

}  // namespace muster::image_ops
