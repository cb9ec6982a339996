// The worker of this process.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <memory>

#include "muster/graph/checker.h"
#include "muster/graph/passes.h"
#include "muster/runtime/devices.h"
#include "muster/runtime/variable_store.h"
#include "muster/runtime/worker.h"

namespace muster {

class Executor;
class KernelTable;
class OpCatalog;

struct LocalWorkerOptions {
  LocalDevicesOptions devices{};
  PassOptions passes{};
  Limits limits{};
  std::vector<std::string> extra_ops{};  // see OpCatalog
  // Every op gives the bits that eager libtorch gives. Else convolutions and poolings use the implementation that is
  // fastest on this machine, measured once per shape, whose results may differ in the last bits.
  bool exact = false;
  // Tensors of a program get their memory from a pool (memory_pool.h): asking the kernel for the same pages in every
  // step is slow. Makes the pool libtorch's CPU allocator.
  bool keep_memory = true;
  bool soft_placement = true;
  bool log_device_placement = false;
};

class LocalWorker : public Worker {
 public:
  explicit LocalWorker(LocalWorkerOptions options = {});
  ~LocalWorker() override;

  ProgramHandle register_program(const Program& program) override ABSL_LOCKS_EXCLUDED(mu_);
  void deregister_program(ProgramHandle handle) override ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<at::Tensor> run(ProgramHandle handle, std::vector<at::Tensor> arguments,
                              const RunOptions& options = {}) override ABSL_LOCKS_EXCLUDED(mu_);
  WorkerStatus status() const override ABSL_LOCKS_EXCLUDED(mu_);

  const LocalDevices& devices() const { return devices_; }
  VariableStore& variables() { return variables_; }
  const KernelTable& kernels() const { return *kernels_; }
  // The program as it runs: after the passes and placed.
  Program prepared_program(ProgramHandle handle) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::shared_ptr<Executor> executor(ProgramHandle handle) const ABSL_LOCKS_EXCLUDED(mu_);

  const LocalWorkerOptions options_;
  const LocalDevices devices_;
  VariableStore variables_;
  // Behind pointers, to keep libtorch's dispatcher out of every file that uses Muster.
  const std::unique_ptr<const OpCatalog> catalog_;
  const std::unique_ptr<KernelTable> kernels_;

  mutable absl::Mutex mu_;
  uint64_t next_handle_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Executor>> executors_ ABSL_GUARDED_BY(mu_);
};

// The worker that functions run on when they are called directly. It is made at the first use, with one CPU device and
// the machine's GPUs unless `set_local_options` came before.
LocalWorker& local_worker();

// Throws Error{kFailedPrecondition} once `local_worker()` is in use: devices cannot change under variables.
void set_local_options(LocalWorkerOptions options);

}  // namespace muster
