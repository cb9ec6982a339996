#include "muster/trace/across_workers.h"

#include <ATen/ops/zeros.h>

#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/tracer/dispatcher_hook.h"
#include "muster/trace/tracer/tracer.h"

namespace muster {

std::vector<at::Tensor> AcrossWorkers::make_one(const CollectiveCall& call,
                                                const std::vector<at::Tensor>& values) const {
  if (alone() || values.empty()) return values;
  Tracer* tracer = Tracer::current();
  if (tracer == nullptr) return local_worker().group(group)->run(call, values);
  ArgumentList operands;
  std::vector<at::Tensor> results;
  for (const at::Tensor& value : values) operands.push_back({ValueRef{tracer->value_of(value)}});
  {
    // Stand-ins, as large as the others would make them if they had as much.
    Untraced untraced;
    PlainTensors plain;
    for (const at::Tensor& value : values) {
      std::vector<int64_t> sizes = value.sizes().vec();
      if (call.kind == CollectiveKind::kAllGather) sizes.at(0) *= size;
      if (call.kind == CollectiveKind::kReduceScatter) sizes.at(0) /= size;
      results.push_back(at::zeros(sizes, value.options().device(at::kCPU)));
    }
  }
  tracer->add_instruction(kCollective,
                          {{std::move(operands)},
                           {static_cast<int64_t>(group)},
                           {static_cast<int64_t>(call.kind)},
                           {static_cast<int64_t>(call.reduction)},
                           {call.root},
                           {call.purpose}},
                          {results}, {});
  return results;
}

}  // namespace muster
