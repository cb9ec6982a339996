#include "muster/runtime/tensors.h"

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>

#include <cstring>

#include "muster/base/status.h"

namespace muster {

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
  std::memcpy(tensor.mutable_data_ptr(), constant.bytes->data(), constant.bytes->size());
  if (constant.is_number) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

void begin_at_their_memory(std::vector<at::Tensor>& arguments) {
  PlainTensors plain;
  for (at::Tensor& tensor : arguments) {
    if (tensor.storage_offset() != 0 || !tensor.is_contiguous()) tensor = tensor.clone(at::MemoryFormat::Contiguous);
  }
}

void bring_to(const at::Device& device, at::Tensor& tensor) {
  if (tensor.defined() && tensor.device() != device) tensor = tensor.to(device);
}

}  // namespace muster
