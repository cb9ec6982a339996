#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/graph/checker.h"
#include "muster/graph/passes/passes.h"
#include "muster/runtime/devices.h"
#include "muster/runtime/tuning/tuning_options.h"
#include "muster/runtime/worker/element_source.h"
#include "muster/runtime/worker/lease_holder.h"
#include "muster/runtime/worker/worker.h"

namespace muster {

struct LocalWorkerOptions {
  LocalDevicesOptions devices{};
  PassOptions passes{};
  Limits limits{};
  std::vector<std::string> extra_ops{};  // see OpCatalog
  // Every op gives the bits that eager libtorch gives. Else convolutions and poolings use what is fastest on this
  // machine, measured once per shape, and small products of matrices (on arm64 most) our own kernels (float_product.h),
  // whose results may differ by rounding (most, by some 1e-6 of the output's size and in what becomes of infinities,
  // those of winograd/convolution.h), and large weights of linear layers are in the order that is fastest
  // (tuning/order_trial.h).
  bool exact = false;
  // Where what was measured is remembered, and whether anything is measured at all.
  TuningOptions tuning{};
  // Tensors of a program get their memory from a pool (memory_pool.h): asking the kernel for the same pages in every
  // step is slow. Makes the pool libtorch's CPU allocator.
  bool keep_memory = true;
  // Bytes that the tensors of one run may have at the same time on the CPU, asked for before the system is; an op that
  // wants more fails with RESOURCE_EXHAUSTED. None: nine tenths of what the machine, or its container, has.
  std::optional<int64_t> run_memory{};
  // A wish for a device that is not there, of a program or a variable, is one for another, with a line in the log; else
  // an error that says which there are.
  bool soft_placement = true;
  // Of the machine's, for libtorch's ops; none: as many as there are, or, for one of several tasks of a job on one
  // machine, its share.
  std::optional<int> cores{};
  size_t max_programs = 10'000;  // different ones, registered at the same time
  // An owner that was not heard of for so long is gone, and what it has left here goes.
  std::chrono::milliseconds lease = kUsualLease;
  // Checkpoints, and caches of datasets, are written and read below these directories, at a client's wish.
  std::vector<std::string> storage{};
  // Datasets may read files below these directories, at a client's wish; none: nowhere.
  std::vector<std::string> data{};
  OpenSource open_source{};  // without it programs cannot take examples from sequences
  bool log_device_placement = false;
  int workers = 0;  // as in WorkerStatus
};

}  // namespace muster
