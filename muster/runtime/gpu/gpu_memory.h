// How much of a GPU's memory this process takes.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace muster {

// From now on tensors of this process have at most so many bytes of the GPU together; one more is an error,
// RESOURCE_EXHAUSTED, of the op that asks for it. CUDA itself and its libraries take some hundred MiB besides. Throws
// Error{kInvalidArgument} if the GPU has less, Error{kFailedPrecondition} if Muster was built without CUDA's headers.
void limit_gpu_memory(c10::Device gpu, int64_t bytes);

}  // namespace muster
