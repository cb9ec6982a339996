#include "muster/trace/tracer/captured_tensor.h"

#include "muster/runtime/memory/tensors.h"

namespace muster {

CapturedTensor::CapturedTensor(const at::Tensor& tensor)
    : tensor_(tensor.getIntrusivePtr()),
      version_(tensor.unsafeGetTensorImpl()->version_counter()),
      version_then_(version_.enabled() ? version_.current_version() : 0),
      storage_then_(tensor.storage().unsafeGetStorageImpl()),
      requires_grad_(tensor.requires_grad()),
      spec_(spec_of(tensor)) {}

std::string CapturedTensor::change() const {
  if (version_.enabled() && version_.current_version() != version_then_) return "was written to";
  const auto now = tensor_.lock();
  if (!now || now->unsafe_storage().unsafeGetStorageImpl() != storage_then_) return "was replaced by another one";
  return "";
}

}  // namespace muster
