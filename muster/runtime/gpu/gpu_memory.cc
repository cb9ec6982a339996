#include "muster/runtime/gpu/gpu_memory.h"

#include "muster/base/status.h"

#ifdef MUSTER_CUDA_GRAPHS
#include <c10/cuda/CUDACachingAllocator.h>
#endif

namespace muster {

#ifdef MUSTER_CUDA_GRAPHS

void limit_gpu_memory(c10::Device gpu, int64_t bytes) {
  auto* allocator = c10::cuda::CUDACachingAllocator::get();
  const auto total = static_cast<int64_t>(allocator->getMemoryInfo(gpu.index()).second);
  if (bytes > total) {
    throw invalid_argument("GPU ", static_cast<int>(gpu.index()), " has ", total >> 20, " MiB of memory, and ",
                           bytes >> 20, " MiB of it were to be the limit");
  }
  allocator->setMemoryFraction(static_cast<double>(bytes) / static_cast<double>(total), gpu.index());
}

#else

void limit_gpu_memory(c10::Device, int64_t) {
  throw failed_precondition("a limit for the memory of a GPU needs a Muster that was built with CUDA's headers");
}

#endif

}  // namespace muster
