// The processes that take a step together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "muster/runtime/worker/collectives.h"

namespace muster {

// A group of processes that trace and run the same functions, seen from one of them. A value.
struct AcrossWorkers {
  uint64_t group = 0;  // its number at the local worker
  int rank = 0;
  int size = 1;
  int64_t bytes_per_pack = int64_t{8} << 20;  // what is summed in a backward pass goes in pieces of about this size

  bool alone() const { return size == 1; }
  // Inside of a traced function an instruction of its program, else now. The values of all processes as one, as
  // Collectives::run() has it; alone, those that were given.
  std::vector<at::Tensor> make_one(const CollectiveCall& call, const std::vector<at::Tensor>& values) const;
  at::Tensor sum(const at::Tensor& value, const std::string& purpose) const {
    return make_one({.purpose = purpose}, {value})[0];
  }
};

}  // namespace muster
