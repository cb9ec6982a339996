#include "muster/trace/iterator.h"

#include <ATen/ops/zeros.h>

#include "muster/base/status.h"
#include "muster/runtime/local_worker.h"
#include "muster/runtime/tensors.h"
#include "muster/trace/dispatcher_hook.h"
#include "muster/trace/tracer.h"

namespace muster {

std::vector<int64_t> specs_as_numbers(const std::vector<TensorSpec>& specs) {
  std::vector<int64_t> numbers;
  for (const TensorSpec& spec : specs) {
    numbers.push_back(static_cast<int64_t>(spec.dtype));
    numbers.push_back(static_cast<int64_t>(spec.sizes.size()));
    numbers.insert(numbers.end(), spec.sizes.begin(), spec.sizes.end());
  }
  return numbers;
}

std::vector<at::Tensor> Iterator::next_tensors(size_t count) {
  if (!number.defined()) throw failed_precondition("an iterator without a sequence: make one from a Dataset");
  Tracer* tracer = Tracer::current();
  std::vector<at::Tensor> element;
  if (tracer == nullptr) {
    auto source = local_worker().source(static_cast<uint64_t>(number.item().toLong()));
    auto taken = source->next();
    if (!taken) throw out_of_range("the sequence of examples has ended; add repeat() to begin again");
    element = std::move(*taken);
  } else {
    // Stand-ins: what an element holds is not known while tracing, only what it looks like.
    Untraced untraced;
    PlainTensors plain;
    for (size_t i = 0; i + 1 < specs.size(); i += 2 + static_cast<size_t>(specs[i + 1])) {
      const at::IntArrayRef sizes(specs.data() + i + 2, static_cast<size_t>(specs[i + 1]));
      element.push_back(at::zeros(sizes, at::TensorOptions(scalar_type_of(*dtype_from_number(specs[i])))));
    }
  }
  if (element.size() != count) {
    throw invalid_argument("an element of this sequence has ", element.size(), " tensors; next<", count,
                           ">() was asked for ", count);
  }
  if (tracer == nullptr) return element;
  ArgumentList expected;
  for (int64_t value : specs) expected.push_back({value});
  tracer->add_instruction(kNext, {{ValueRef{tracer->value_of(number)}}, {std::move(expected)}}, {element}, {});
  return element;
}

}  // namespace muster
