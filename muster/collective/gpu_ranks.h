// What a group of tasks does with tensors that are on GPUs, without the memory of the host.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "muster/runtime/worker/collectives.h"

namespace muster {

// The GPUs of all ranks of a group, seen from one of them. One call runs at a time, and all ranks make them in the same
// order: TaskGroup sees to both.
class GpuRanks {
 public:
  virtual ~GpuRanks() = default;

  // Whether it makes such calls. What it answers depends on what all ranks have alike, and on where the tensors are.
  virtual bool takes(const CollectiveCall& call, const std::vector<at::Tensor>& values) const = 0;
  // So many bytes that it takes a sum of.
  virtual at::Tensor zeros(int64_t bytes) const = 0;
  // As Collectives::run(). Returns when the results are there. `look` is called again and again until then: what it
  // throws is the end of this call and of all after it.
  // REQUIRES: takes(), and all ranks have agreed on the call.
  virtual std::vector<at::Tensor> run(const CollectiveCall& call, const std::vector<at::Tensor>& values,
                                      const std::function<void()>& look) = 0;
  // A rank is gone: nothing of it is waited for, not even at the end.
  virtual void abandon() = 0;
};

// Called by every rank at the same time, when a group is formed. Null at all of them: tensors on GPUs go through the
// memory of the host.
using MeetGpus = std::function<std::unique_ptr<GpuRanks>(Collectives& group)>;

}  // namespace muster
