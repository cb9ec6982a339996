#pragma once

#include <cstddef>

#include "muster/runtime/executor/plan.h"
#include "muster/runtime/executor/plan_memory.h"

namespace muster {

// Steps of a lane whose kernels may be chosen (KernelChoice) become those of image_ops.h: batch norm in training with
// the sum and relu that follow it, its backward with that of relu and the sum of gradients before it, and max pooling.
// Gradients of weights change their type and their order of memory in one copy, and counters that nothing else looks at
// are increased together. Nobody sees the difference but for the rounding, and it is as safe for whatever else the
// program does: a step is moved past others only if they neither write what it reads nor read what it writes.
// REQUIRES: last uses are known, and `memory` is of the plan's program as it was before its constants were brought to
// devices.
void fuse_images(Plan& plan, size_t lane, const PlanMemory& memory);

}  // namespace muster
