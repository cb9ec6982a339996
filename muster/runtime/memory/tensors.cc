#include "muster/runtime/memory/tensors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/Event.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <map>

#include "muster/base/status.h"

namespace muster {
namespace {

constexpr size_t kWorthHelp = 4 << 20;      // bytes: a copy takes a thread a millisecond
constexpr size_t kWorthPinning = 16 << 10;  // bytes: CUDA takes fewer with the launch

struct ByIndex {
  bool operator()(const at::Device& a, const at::Device& b) const { return a.index() < b.index(); }
};

at::Tensor pinned_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
}

}  // namespace

static_assert(static_cast<int>(DType::kFloat) == static_cast<int>(at::kFloat));
static_assert(static_cast<int>(DType::kComplexDouble) == static_cast<int>(at::kComplexDouble));
static_assert(static_cast<int>(DType::kBool) == static_cast<int>(at::kBool));
static_assert(static_cast<int>(DType::kBFloat16) == static_cast<int>(at::kBFloat16));

at::ScalarType scalar_type_of(DType dtype) { return static_cast<at::ScalarType>(dtype); }

DType dtype_of(at::ScalarType type) {
  auto dtype = dtype_from_number(static_cast<int64_t>(type));
  if (!dtype) throw invalid_argument("element type ", c10::toString(type), " cannot be part of a program");
  return *dtype;
}

TensorSpec spec_of(const at::Tensor& tensor) { return {dtype_of(tensor.scalar_type()), tensor.sizes().vec()}; }

bool in_columns(const at::Tensor& tensor) {
  return tensor.defined() && tensor.dim() == 2 && !tensor.is_contiguous() && tensor.stride(0) == 1 &&
         tensor.stride(1) == tensor.size(0);
}

Constant constant_of(const at::Tensor& tensor) {
  PlainTensors plain;
  at::Tensor whole = tensor.detach().to(at::kCPU).contiguous().resolve_conj().resolve_neg();
  Constant constant{.spec = spec_of(whole)};
  constant.bytes =
      std::make_shared<const std::string>(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
  constant.is_number = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  return constant;
}

at::Tensor tensor_of(const Constant& constant) {
  PlainTensors plain;
  at::Tensor tensor = at::empty(constant.spec.sizes, at::TensorOptions(scalar_type_of(constant.spec.dtype)));
  // An empty one has no memory, of which memcpy() is not to be told.
  if (!constant.bytes->empty()) std::memcpy(tensor.mutable_data_ptr(), constant.bytes->data(), constant.bytes->size());
  if (constant.is_number) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

at::Tensor copy_of(const at::Tensor& tensor) {
  const bool plain_memory = tensor.layout() == at::kStrided && tensor.is_cpu() && !tensor.is_conj() &&
                            !tensor.is_neg() && tensor.is_non_overlapping_and_dense();
  if (!plain_memory || tensor.nbytes() >= kWorthHelp) return tensor.clone();
  PlainTensors plain;
  const at::Tensor copy = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
  if (tensor.numel() > 0) std::memcpy(copy.mutable_data_ptr(), tensor.const_data_ptr(), tensor.nbytes());
  return copy;
}

void begin_at_their_memory(std::vector<at::Tensor>& arguments) {
  PlainTensors plain;
  for (at::Tensor& tensor : arguments) {
    if (tensor.storage_offset() != 0 || !tensor.is_contiguous()) tensor = tensor.clone(at::MemoryFormat::Contiguous);
  }
}

void bring_to(const at::Device& device, at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device() == device) return;
  if (!device.is_cuda() || !tensor.is_cpu() || tensor.layout() != at::kStrided || tensor.nbytes() < kWorthPinning) {
    tensor = tensor.to(device);
    return;
  }
  PlainTensors plain;
  tensor = pinned_like(tensor).copy_(tensor).to(device, /*non_blocking=*/true);
}

void bring_to_host(std::vector<at::Tensor>& tensors) {
  PlainTensors plain;
  std::map<at::Device, c10::Stream, ByIndex> copying;
  for (at::Tensor& tensor : tensors) {
    if (!tensor.defined() || tensor.is_cpu()) continue;
    const at::Device device = tensor.device();
    if (tensor.layout() != at::kStrided) {
      tensor = tensor.to(at::kCPU);
      continue;
    }
    auto stream = copying.find(device);
    if (stream == copying.end()) {
      const c10::impl::VirtualGuardImpl streams(device.type());
      stream = copying.emplace(device, streams.getStreamFromGlobalPool(device)).first;
      c10::Event before(device.type());
      before.record(streams.getStream(device));
      before.block(stream->second);
    }
    const c10::StreamGuard beside(stream->second);
    tensor.record_stream(stream->second);
    tensor = pinned_like(tensor).copy_(tensor, /*non_blocking=*/true);
  }
  for (auto& [device, stream] : copying) stream.synchronize();
}

}  // namespace muster
