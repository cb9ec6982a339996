#include "muster/trace/iterator.h"

#include <ATen/ops/zeros.h>

#include "muster/base/status.h"
#include "muster/graph/elements.h"
#include "muster/runtime/local_worker.h"
#include "muster/runtime/tensors.h"
#include "muster/trace/dispatcher_hook.h"
#include "muster/trace/tracer.h"

namespace muster {

std::vector<at::Tensor> Iterator::next_tensors(size_t count) {
  if (!number.defined()) throw failed_precondition("an iterator without a sequence: make one from a Dataset");
  Tracer* tracer = Tracer::current();
  std::vector<at::Tensor> element;
  std::vector<int64_t> described;
  if (tracer == nullptr) {
    auto source = local_worker().source(static_cast<uint64_t>(number.item().toLong()));
    auto taken = source->next();
    if (!taken) throw out_of_range("the sequence of examples has ended; add repeat() to begin again");
    element = std::move(*taken);
  } else {
    // Stand-ins: what an element holds is not known while tracing, only what it looks like.
    Untraced untraced;
    PlainTensors plain;
    const ElementSpec* given = tracer->next_element();
    described = given != nullptr ? numbers_of(*given) : specs;
    for (const TensorSpec& spec : element_from(described)) {
      element.push_back(at::zeros(spec.sizes, at::TensorOptions(scalar_type_of(spec.dtype))));
    }
  }
  if (element.size() != count) {
    throw invalid_argument("an element of this sequence has ", element.size(), " tensors; next<", count,
                           ">() was asked for ", count);
  }
  if (tracer == nullptr) return element;
  ArgumentList expected;
  for (int64_t value : described) expected.push_back({value});
  tracer->add_instruction(kNext, {{ValueRef{tracer->value_of(number)}}, {std::move(expected)}}, {element}, {});
  return element;
}

}  // namespace muster
