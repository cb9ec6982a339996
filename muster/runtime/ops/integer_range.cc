#include "muster/runtime/ops/integer_range.h"

#include <ATen/Parallel.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/stack.h>

namespace muster {
namespace {

bool is_elsewhere(const c10::IValue& value) { return value.isTensor() && !value.toTensor().is_cpu(); }

// Of a tensor that is not in the CPU's memory.
IntegerRange range_elsewhere(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || !at::isIntegralType(tensor.scalar_type(), false)) return {};
  const auto [least, most] = at::aminmax(tensor);
  const at::Tensor both = at::stack({least, most}).to(at::kCPU, at::kLong);  // one wait for the device
  return {both.data_ptr<int64_t>()[0], both.data_ptr<int64_t>()[1]};
}

}  // namespace

IntegerRange range_of(const c10::IValue& value) {
  IntegerRange range;
  if (is_elsewhere(value)) return range_elsewhere(value.toTensor());
  if (value.isTensor() && value.toTensor().is_cpu() && value.toTensor().scalar_type() == at::kLong) {
    constexpr int64_t kWorthAThread = 64 << 10;
    const at::Tensor elements = value.toTensor().contiguous();
    const int64_t* data = elements.const_data_ptr<int64_t>();
    return at::parallel_reduce(
        0, elements.numel(), kWorthAThread, range,
        [data](int64_t begin, int64_t end, IntegerRange found) {
          for (int64_t i = begin; i < end; ++i) found = found.with({data[i], data[i]});
          return found;
        },
        [](const IntegerRange& a, const IntegerRange& b) { return a.with(b); });
  }
  for_each_integer(value, [&](int64_t element) { range = range.with({element, element}); });
  return range;
}

}  // namespace muster
