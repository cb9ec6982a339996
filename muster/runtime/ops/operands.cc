#include "muster/runtime/ops/operands.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/List.h>

#include <atomic>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/rows/row_table.h"
#include "muster/runtime/tuning/kernel_choice.h"

namespace muster {
namespace {

bool is_channels_last(const at::Tensor& tensor) {
  return tensor.dim() == 4 && !tensor.is_contiguous() && tensor.is_contiguous(at::MemoryFormat::ChannelsLast);
}

bool fills_its_memory(const at::Tensor& tensor) {
  return tensor.is_contiguous() && tensor.storage_offset() == 0 && tensor.storage().nbytes() == tensor.nbytes();
}

// libtorch takes it for a number of C++, which does not decide about types.
bool is_number(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->is_wrapped_number(); }

}  // namespace

c10::IValue list_operand(const Step::ListSlot& slot, const std::vector<at::Tensor>& values) {
  if (!slot.optional) {
    c10::List<at::Tensor> tensors;
    tensors.reserve(slot.values.size());
    for (ValueId value : slot.values) {
      if (!values[value].defined()) {
        throw invalid_argument("argument ", slot.position, " has a tensor that is not defined");
      }
      tensors.push_back(values[value]);
    }
    return tensors;
  }
  c10::List<std::optional<at::Tensor>> tensors;
  tensors.reserve(slot.values.size());
  for (ValueId value : slot.values) {
    if (value == kNoneElement) {
      tensors.push_back(std::nullopt);
    } else {
      tensors.push_back(value >= 0 ? values[value] : at::Tensor());
    }
  }
  return tensors;
}

void use_one_order(const Step& step, std::vector<c10::IValue>& stack) {
  bool any = false;
  for (const Step::Slot& slot : step.slots) any = any || is_channels_last(stack[slot.position].toTensor());
  if (!any) return;
  for (const Step::Slot& slot : step.slots) {
    const at::Tensor& tensor = stack[slot.position].toTensor();
    if (tensor.dim() == 4) stack[slot.position] = tensor.contiguous(at::MemoryFormat::ChannelsLast);
  }
}

void put_in_usual_order(c10::IValue& operand) {
  if (operand.isTensor()) {
    operand = in_usual_order(operand.toTensor());
  } else if (operand.isTensorList()) {
    c10::List<at::Tensor> tensors = operand.toTensorList();
    for (size_t i = 0; i < tensors.size(); ++i) tensors.set(i, in_usual_order(tensors.get(i)));
  }
}

bool nobody_else_sees(const c10::IValue& operand, bool handed_over) {
  const at::Tensor& tensor = operand.toTensor();
  if (!tensor.has_storage() || tensor.use_count() > (handed_over ? 1 : 2) || tensor.storage().use_count() != 1 ||
      !tensor.is_non_overlapping_and_dense()) {
    return false;
  }
  // Memory that was not allocated by libtorch is somebody else's, such as the caller's in a tensor made by from_blob().
  if (tensor.storage().allocator() == nullptr) return false;
    // Another lane may have read it until now. What it did before it let go of the tensor is over.
#ifdef __SANITIZE_THREAD__  // which knows no fences
  [[maybe_unused]] const at::Tensor held = tensor;
  [[maybe_unused]] const c10::Storage memory = tensor.storage();
#else
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
  return true;
}

bool results_fit(at::ArrayRef<c10::IValue> operands) {
  const at::Tensor& first = operands[0].toTensor();
  if (!first.is_floating_point() || is_number(first)) return false;
  for (const c10::IValue& operand : operands.slice(1)) {
    if (operand.isComplexDouble()) return false;
    if (!operand.isTensor()) continue;
    const at::Tensor& other = operand.toTensor();
    if (!other.defined() || other.is_complex()) return false;
    if (other.scalar_type() != first.scalar_type() && !is_number(other)) return false;
    if (other.device() != first.device() && other.dim() != 0) return false;
    if (other.sizes() != first.sizes() && !at::is_expandable_to(other.sizes(), first.sizes())) return false;
  }
  return true;
}

bool move_into(const at::Tensor& variable, const c10::IValue& given, bool handed_over) {
  const at::Tensor& value = given.toTensor();
  if (value.sizes() != variable.sizes() || value.scalar_type() != variable.scalar_type() ||
      value.device() != variable.device() || !fills_its_memory(value) || !fills_its_memory(variable) ||
      !nobody_else_sees(given, handed_over)) {
    return false;
  }
  if (RowTable::of(value) != nullptr) return false;
  const c10::Storage memory = value.storage();
  value.unsafeGetTensorImpl()->set_storage_keep_dtype(variable.storage());
  variable.unsafeGetTensorImpl()->set_storage_keep_dtype(memory);
  return true;
}

void check_arguments(const Program& program, const std::vector<at::Tensor>& arguments) {
  if (arguments.size() != program.arguments.size()) {
    throw invalid_argument("program \"", program.name, "\" takes ", program.arguments.size(), " tensors, got ",
                           arguments.size());
  }
  for (size_t i = 0; i < arguments.size(); ++i) {
    const TensorSpec& expected = program.arguments[i].spec;
    if (!arguments[i].defined()) {
      throw invalid_argument("program \"", program.name, "\": argument ", i, " is undefined");
    }
    if (program.arguments[i].any) continue;
    if (scalar_type_of(expected.dtype) != arguments[i].scalar_type() || arguments[i].sizes() != expected.sizes) {
      throw invalid_argument("program \"", program.name, "\": argument ", i, " is ", spec_of(arguments[i]).to_string(),
                             ", expected ", expected.to_string());
    }
  }
}

at::Tensor element_of(const at::Tensor& values, int64_t index) {
  if (values.dim() == 0 || index < 0 || index >= values.size(0)) {
    throw out_of_range("element: index ", index, " of ", spec_of(values).to_string());
  }
  return values.select(0, index);
}

void store_result(const std::vector<ValueId>& numbers, c10::IValue result, std::vector<at::Tensor>& values) {
  if (result.isTensor()) {
    if (numbers.size() == 1 && numbers[0] >= 0) values[numbers[0]] = std::move(result).toTensor();
  } else if (result.isTensorList()) {
    const auto tensors = result.toTensorList();
    if (tensors.size() != numbers.size()) {
      throw internal("returned ", tensors.size(), " tensors where ", numbers.size(), " were recorded");
    }
    for (size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] >= 0) values[numbers[i]] = tensors.get(i);
    }
  }
}

}  // namespace muster
