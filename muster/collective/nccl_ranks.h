// Ranks whose GPUs talk to each other through NCCL.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "muster/collective/gpu_ranks.h"

namespace muster {

// Why there is no NCCL in this build: which part of it was missing. Empty if there is.
std::string missing_for_nccl();

// What a rank tells the others of its GPU.
struct GpuOfRank {
  bool has_nccl = false;
  bool has_gpu = false;
  bool required = false;        // it would rather fail than do without
  int64_t first = 0, last = 0;  // halves of the number that NVIDIA has given the GPU; no two have the same
};

// Empty if every rank has a GPU of its own and can use NCCL. Else which rank, in the words of `described`, and what it
// lacks.
std::string why_no_nccl(const std::vector<GpuOfRank>& by_rank, const std::function<std::string(int rank)>& described);

struct NcclOptions {
  std::optional<c10::Device> device{};  // of this rank's tensors
  // Whether to fail where it cannot be. A rank that says so fails all of them.
  bool required = false;
};

// For TaskGroupOptions::meet_gpus. Throws Error{kFailedPrecondition} if NCCL is required and cannot be, with the
// reason. Limit: groups of up to 128 ranks, since libtorch starts larger ones in another way; those go through the
// host.
MeetGpus meet_by_nccl(NcclOptions options);

}  // namespace muster
