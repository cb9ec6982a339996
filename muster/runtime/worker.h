// Whoever runs programs: in this process or behind a wire. What is above never asks which.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "muster/graph/program.h"
#include "muster/runtime/run_options.h"

namespace muster {

// Names a program that a worker has made ready.
struct ProgramHandle {
  uint64_t id = 0;
  bool operator==(const ProgramHandle&) const = default;
};

struct WorkerStatus {
  std::string task{};
  std::vector<std::string> devices{};
  size_t programs = 0;
  size_t variables = 0;
  int64_t variable_bytes = 0;
};

// Thread-safe. Every method throws Error.
class Worker {
 public:
  virtual ~Worker() = default;

  // Checks, places and prepares the program, once for any number of runs.
  virtual ProgramHandle register_program(const Program& program) = 0;
  // Runs that are under way end as they would have. NotFound if there is no such program.
  virtual void deregister_program(ProgramHandle handle) = 0;
  virtual std::vector<at::Tensor> run(ProgramHandle handle, std::vector<at::Tensor> arguments,
                                      const RunOptions& options = {}) = 0;
  virtual WorkerStatus status() const = 0;
};

}  // namespace muster
