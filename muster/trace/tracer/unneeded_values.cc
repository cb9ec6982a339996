#include "muster/trace/tracer/unneeded_values.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/strides.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>

#include "muster/graph/op_traits.h"
#include "muster/trace/tracer/dispatcher_hook.h"

namespace muster {
namespace {

constexpr size_t kWorthAMapping = 256 << 10;  // bytes

// Memory of zeros that is none until somebody touches it.
class UntouchedPages final : public c10::Allocator {
 public:
  static UntouchedPages& get() {
    static UntouchedPages pages;
    return pages;
  }
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, at::kCPU};
    auto* mapped = static_cast<Mapped*>(std::malloc(sizeof(Mapped)));
    TORCH_CHECK_WITH(OutOfMemoryError, mapped != nullptr, "no memory for a trace");
    *mapped = {mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0), bytes};
    if (mapped->at == MAP_FAILED) {
      std::free(mapped);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "no addresses left for ", bytes, " bytes of a trace");
    }
    return {mapped->at, mapped, &give_back, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }

 private:
  struct Mapped {
    void* at;
    size_t bytes;
  };
  static void give_back(void* context) {
    auto* mapped = static_cast<Mapped*>(context);
    munmap(mapped->at, mapped->bytes);
    std::free(mapped);
  }
};

bool is_plain(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.layout() == at::kStrided && tensor.is_cpu() && !tensor.is_conj() &&
         !tensor.is_neg() && !tensor.is_quantized();
}

at::Tensor untouched(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
  if (at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype)) < kWorthAMapping) {
    at::Tensor small = at::detail::empty_strided_cpu(sizes, strides, dtype);
    std::memset(small.mutable_data_ptr(), 0, small.storage().nbytes());
    return small;
  }
  return at::detail::empty_strided_generic(sizes, strides, &UntouchedPages::get(),
                                           c10::DispatchKeySet(c10::DispatchKey::CPU), dtype);
}

at::Tensor untouched_like(const at::Tensor& tensor) {
  return untouched(tensor.sizes(), tensor.strides(), tensor.scalar_type());
}

// The operands of an op without their elements.
class Shapes {
 public:
  // Nothing if there is an operand of a kind that this does not know.
  bool add(const c10::IValue& value) {
    if (value.isTensor()) {
      if (value.toTensor().defined() && !is_plain(value.toTensor())) return false;
      stack.emplace_back(value.toTensor().defined() ? shape_of(value.toTensor()) : at::Tensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> shapes;
      for (const at::Tensor& tensor : value.toTensorVector()) {
        if (!tensor.defined() || !is_plain(tensor)) return false;
        shapes.push_back(shape_of(tensor));
      }
      stack.emplace_back(std::move(shapes));
    } else if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList()) {
      return false;
    } else {
      stack.push_back(value.isDevice() ? c10::IValue(c10::Device(at::kMeta)) : value);
    }
    return true;
  }

  // What stands for a result: the operand itself if it is one, else zeros. Nothing for a view of an operand.
  std::optional<at::Tensor> result(const at::Tensor& shape) const {
    if (!shape.defined()) return shape;
    for (const auto& [operand, without] : operands_) {
      if (without.is_same(shape)) return operand;
      if (without.is_alias_of(shape)) return std::nullopt;
    }
    if (shape.device() != at::kMeta || shape.layout() != at::kStrided) return std::nullopt;
    return untouched_like(shape);
  }

  size_t bytes = 0;
  std::vector<c10::IValue> stack;

 private:
  at::Tensor shape_of(const at::Tensor& tensor) {
    bytes += tensor.nbytes();
    at::Tensor shape = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) shape.unsafeGetTensorImpl()->set_wrapped_number(true);
    operands_.emplace_back(tensor, shape);
    return shape;
  }

  std::vector<std::pair<at::Tensor, at::Tensor>> operands_;
};

// ---- Ops that libtorch's C++ has no shape function for

bool all_contiguous(at::ArrayRef<c10::IValue> operands) {
  return std::all_of(operands.begin(), operands.end(), [](const c10::IValue& operand) {
    return !operand.isTensor() || !operand.toTensor().defined() || operand.toTensor().is_contiguous();
  });
}

// aten::convolution(input, weight, bias?, stride, padding, dilation, transposed, output_padding, groups)
std::optional<std::vector<at::Tensor>> convolution(at::ArrayRef<c10::IValue> operands) {
  const at::Tensor &input = operands[0].toTensor(), &weight = operands[1].toTensor();
  const size_t dimensions = weight.dim() - 2;
  const auto each = [&](int operand) {
    std::vector<int64_t> numbers = operands[operand].toIntVector();
    if (numbers.size() == 1) numbers.resize(dimensions, numbers[0]);
    return numbers;
  };
  const std::vector<int64_t> stride = each(3), padding = each(4), dilation = each(5);
  if (operands[6].toBool() || input.dim() != weight.dim() || stride.size() != dimensions ||
      padding.size() != dimensions || dilation.size() != dimensions ||
      input.size(1) != weight.size(1) * operands[8].toInt()) {
    return std::nullopt;
  }
  std::vector<int64_t> sizes = {input.size(0), weight.size(0)};
  for (size_t i = 0; i < dimensions; ++i) {
    const int64_t reach = dilation[i] * (weight.size(i + 2) - 1) + 1;
    const int64_t room = input.size(i + 2) + 2 * padding[i] - reach;
    if (room < 0 || stride[i] <= 0) return std::nullopt;
    sizes.push_back(room / stride[i] + 1);
  }
  return {{untouched(sizes, c10::contiguous_strides(sizes), input.scalar_type())}};
}

// aten::convolution_backward(grad_output, input, weight, bias_sizes?, ..., bool[3] output_mask)
std::optional<std::vector<at::Tensor>> convolution_backward(at::ArrayRef<c10::IValue> operands) {
  const at::Tensor &input = operands[1].toTensor(), &weight = operands[2].toTensor();
  const auto wanted = operands[10].toBoolList();
  const int64_t channels = operands[0].toTensor().size(1);
  return {{wanted[0] ? untouched_like(input) : at::Tensor(), wanted[1] ? untouched_like(weight) : at::Tensor(),
           wanted[2] ? untouched({channels}, {1}, weight.scalar_type()) : at::Tensor()}};
}

// aten::native_batch_norm(input, weight?, bias?, running_mean?, running_var?, bool training, ...)
std::optional<std::vector<at::Tensor>> batch_norm(at::ArrayRef<c10::IValue> operands) {
  const at::Tensor &input = operands[0].toTensor(), &weight = operands[1].toTensor();
  if (!operands[5].toBool() || input.dim() < 2 || !weight.defined()) return std::nullopt;
  const at::Tensor statistic = untouched({input.size(1)}, {1}, weight.scalar_type());
  return {{untouched_like(input), statistic, untouched_like(statistic)}};
}

// aten::native_batch_norm_backward(grad_out, input, weight?, ..., bool[3] output_mask)
std::optional<std::vector<at::Tensor>> batch_norm_backward(at::ArrayRef<c10::IValue> operands) {
  const at::Tensor &input = operands[1].toTensor(), &weight = operands[2].toTensor();
  if (!weight.defined()) return std::nullopt;
  const auto wanted = operands[9].toBoolList();
  return {{wanted[0] ? untouched_like(input) : at::Tensor(), wanted[1] ? untouched_like(weight) : at::Tensor(),
           wanted[2] ? untouched_like(weight) : at::Tensor()}};
}

// aten::relu(input)
std::optional<std::vector<at::Tensor>> relu(at::ArrayRef<c10::IValue> operands) {
  return {{untouched_like(operands[0].toTensor())}};
}

std::optional<std::vector<at::Tensor>> relu_in_place(at::ArrayRef<c10::IValue> operands) {
  return {{operands[0].toTensor()}};
}

// aten::native_layer_norm(input, int[] normalized_shape, weight?, bias?, float eps)
std::optional<std::vector<at::Tensor>> layer_norm(at::ArrayRef<c10::IValue> operands) {
  const at::Tensor& input = operands[0].toTensor();
  const std::vector<int64_t> normalized = operands[1].toIntVector();
  const int64_t kept = input.dim() - static_cast<int64_t>(normalized.size());
  if (kept < 0 || input.scalar_type() != at::kFloat || input.sizes().slice(kept) != at::IntArrayRef(normalized)) {
    return std::nullopt;
  }
  for (int parameter : {2, 3}) {
    const at::Tensor& given = operands[parameter].toTensor();
    if (given.defined() && given.sizes() != at::IntArrayRef(normalized)) return std::nullopt;
  }
  std::vector<int64_t> sizes = input.sizes().vec();
  std::fill(sizes.begin() + kept, sizes.end(), 1);
  const at::Tensor mean = untouched(sizes, c10::contiguous_strides(sizes), at::kFloat);
  return {{untouched_like(input), mean, untouched_like(mean)}};
}

// aten::native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, weight?, bias?, bool[3] output_mask)
std::optional<std::vector<at::Tensor>> layer_norm_backward(at::ArrayRef<c10::IValue> operands) {
  const auto wanted = operands[7].toBoolList();
  std::vector<at::Tensor> results;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor& of = operands[std::array{1, 5, 6}[i]].toTensor();
    results.push_back(wanted[i] && of.defined() ? untouched_like(of) : at::Tensor());
  }
  return results;
}

using Rule = std::optional<std::vector<at::Tensor>> (*)(at::ArrayRef<c10::IValue>);
Rule rule_of(const std::string& op) {
  if (op == "aten::relu") return &relu;
  if (op == "aten::relu_") return &relu_in_place;
  if (op == "aten::native_layer_norm") return &layer_norm;
  if (op == "aten::native_layer_norm_backward") return &layer_norm_backward;
  if (op == "aten::convolution") return &convolution;
  if (op == "aten::convolution_backward") return &convolution_backward;
  if (op == "aten::native_batch_norm") return &batch_norm;
  if (op == "aten::native_batch_norm_backward") return &batch_norm_backward;
  return nullptr;
}

}  // namespace

bool leave_values_out(const c10::OperatorHandle& op, const OpSchema& schema, size_t bytes,
                      std::vector<c10::IValue>& stack) {
  for (const SchemaArgument& argument : schema.arguments) {
    if (!argument.aliases.empty() && !argument.written) return false;
  }
  const bool known = schema.name.starts_with("aten::") || schema.name.starts_with("muster_step::");
  if (!known || changes_shape_in_place(schema.name)) return false;
  const size_t first = stack.size() - schema.arguments.size();
  const at::ArrayRef<c10::IValue> operands(stack.data() + first, schema.arguments.size());
  Shapes shapes;
  for (const c10::IValue& operand : operands) {
    if (!shapes.add(operand)) return false;
  }
  if (shapes.bytes < bytes) return false;
  std::vector<c10::IValue> results;
  if (const Rule rule = rule_of(schema.name)) {
    auto tensors = all_contiguous(operands) ? rule(operands) : std::nullopt;
    if (!tensors) return false;
    results.assign(tensors->begin(), tensors->end());
  } else {
    if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return false;
    try {
      Untraced untraced;
      op.callBoxed(&shapes.stack);
    } catch (const std::exception&) {
      return false;
    }
    for (const c10::IValue& shape : shapes.stack) {
      if (shape.isTensor()) {
        const auto result = shapes.result(shape.toTensor());
        if (!result) return false;
        results.emplace_back(*result);
      } else if (shape.isTensorList()) {
        c10::List<at::Tensor> list;
        for (const at::Tensor& each : shape.toTensorVector()) {
          const auto result = shapes.result(each);
          if (!result) return false;
          list.push_back(*result);
        }
        results.emplace_back(std::move(list));
      } else {
        return false;
      }
    }
  }
  stack.resize(first);
  std::move(results.begin(), results.end(), std::back_inserter(stack));
  return true;
}

}  // namespace muster
