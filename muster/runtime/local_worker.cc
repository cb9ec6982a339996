#include "muster/runtime/local_worker.h"

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/graph/placer.h"
#include "muster/runtime/evaluate.h"
#include "muster/runtime/executor.h"
#include "muster/runtime/kernel_choice.h"
#include "muster/runtime/memory_pool.h"
#include "muster/runtime/op_catalog.h"

namespace muster {
namespace {

struct LocalWorkerSlot {
  absl::Mutex mu;
  LocalWorkerOptions options ABSL_GUARDED_BY(mu);
  std::unique_ptr<LocalWorker> worker ABSL_GUARDED_BY(mu);
};

// The devices of a process are one set, however many parts of the program use them: this is the one global of the
// library. Never destroyed: variables with static lifetime may outlive everything else.
LocalWorkerSlot& local_worker_slot() {
  static LocalWorkerSlot& slot = *new LocalWorkerSlot;
  return slot;
}

}  // namespace

LocalWorker::LocalWorker(LocalWorkerOptions options)
    : options_(std::move(options)),
      devices_(options_.devices),
      catalog_(std::make_unique<OpCatalog>(options_.extra_ops)),
      kernels_(std::make_unique<KernelTable>()) {
  if (options_.keep_memory) MemoryPool::instance();
}

LocalWorker::~LocalWorker() = default;

ProgramHandle LocalWorker::register_program(const Program& program) {
  check(program, options_.limits);
  Program ready = program;
  optimize(
      ready, options_.passes,
      [this](const Program& p, const Instruction& instruction) { return evaluate(*catalog_, p, instruction); },
      [](const std::string& op) { return schema_of(op); });
  ready = place(std::move(ready), {.devices = devices_.names(),
                                   .default_device = devices_.default_name(),
                                   .soft_placement = options_.soft_placement,
                                   .log_placement = options_.log_device_placement});
  auto executor = std::make_shared<Executor>(std::move(ready), devices_, *catalog_, variables_,
                                             options_.exact ? nullptr : kernels_.get());
  absl::MutexLock lock(&mu_);
  ProgramHandle handle{next_handle_++};
  executors_[handle.id] = std::move(executor);
  return handle;
}

std::shared_ptr<Executor> LocalWorker::executor(ProgramHandle handle) const {
  absl::MutexLock lock(&mu_);
  auto it = executors_.find(handle.id);
  if (it == executors_.end()) throw not_found("program ", handle.id, " is not registered at ", devices_.task());
  return it->second;
}

void LocalWorker::deregister_program(ProgramHandle handle) {
  std::shared_ptr<Executor> last = executor(handle);
  absl::MutexLock lock(&mu_);
  executors_.erase(handle.id);
}

std::vector<at::Tensor> LocalWorker::run(ProgramHandle handle, std::vector<at::Tensor> arguments,
                                         const RunOptions& options) {
  MemoryPool::Use pool(options_.keep_memory);
  return executor(handle)->run(std::move(arguments), options);
}

WorkerStatus LocalWorker::status() const {
  WorkerStatus status{.task = devices_.task(), .devices = devices_.names()};
  for (const auto& cell : variables_.all()) {
    ++status.variables;
    status.variable_bytes += cell->spec().bytes();
  }
  absl::MutexLock lock(&mu_);
  status.programs = executors_.size();
  return status;
}

Program LocalWorker::prepared_program(ProgramHandle handle) const { return executor(handle)->program(); }

LocalWorker& local_worker() {
  LocalWorkerSlot& slot = local_worker_slot();
  absl::MutexLock lock(&slot.mu);
  if (!slot.worker) slot.worker = std::make_unique<LocalWorker>(slot.options);
  return *slot.worker;
}

void set_local_options(LocalWorkerOptions options) {
  LocalWorkerSlot& slot = local_worker_slot();
  absl::MutexLock lock(&slot.mu);
  if (slot.worker) {
    throw failed_precondition(
        "set_local_options: the devices of this process are in use; call it before the first "
        "variable is made and the first function is called");
  }
  slot.options = std::move(options);
}

}  // namespace muster
