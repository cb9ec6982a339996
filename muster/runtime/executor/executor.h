// Runs one program on the devices of this task, again and again.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "muster/graph/program.h"
#include "muster/runtime/devices.h"
#include "muster/runtime/executor/next_element.h"
#include "muster/runtime/executor/remote_parts.h"
#include "muster/runtime/ops/op_catalog.h"
#include "muster/runtime/variables/variable_store.h"
#include "muster/runtime/worker/collectives.h"
#include "muster/runtime/worker/rendezvous.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {

class Autotuner;

// How the program of an executor reaches other tasks. Both outlive the executor.
struct ExecutorLinks {
  Rendezvous* rendezvous = nullptr;            // of this task
  std::shared_ptr<const RemoteParts> parts{};  // where its parts and their values are
  FindSource source{};                         // without it there are none
  FindGroup group{};                           // likewise
};

// A program made ready: op handles, stacks, last uses and devices are looked up once, by the constructor.
// Thread-safe: each run has its own values. Runs that write the same variable take turns.
class Executor {
 public:
  // REQUIRES: `program` is checked and placed on `devices`, which like `variables` outlive the executor.
  // Throws for an op that is not in `catalog` and a variable that exists with another shape.
  // With `tuner`, which outlives the executor, the fastest of several implementations of an op is used; without, every
  // op is called as it was recorded and gives the same bits as eager libtorch.
  Executor(Program program, const LocalDevices& devices, const OpCatalog& catalog, VariableStore& variables,
           Autotuner* tuner = nullptr, ExecutorLinks links = {});
  ~Executor();

  const Program& program() const;
  // What a run takes before it does anything else.
  const ElementSpecs& elements() const;
  const std::shared_ptr<const RemoteParts>& parts() const { return links_.parts; }

  // Throws Error: what an op throws gets the op, the instruction and the device added to its words; its code is
  // kInvalidArgument for a bad value, kResourceExhausted for lack of memory.
  std::vector<at::Tensor> run(std::vector<at::Tensor> arguments, const RunOptions& options = {});

  // That the last run took longer than it takes to wake another thread, or there was none yet.
  bool takes_long() const { return takes_long_.load(std::memory_order_relaxed); }

 private:
  // Who waits for others says so when it does.
  static constexpr std::chrono::microseconds kLongRun{100}, kLongRunWithOthers{1'000};

  struct Frame;
  class Run;

  void fail_groups() const;  // REQUIRES: an exception is being handled
  std::unique_ptr<Frame> take_frame() ABSL_LOCKS_EXCLUDED(mu_);
  void return_frame(std::unique_ptr<Frame> frame) ABSL_LOCKS_EXCLUDED(mu_);

  const ExecutorLinks links_;
  Autotuner* const tuner_;
  const std::unique_ptr<struct Plan> plan_;
  const std::string task_;
  std::vector<std::shared_ptr<VariableCell>> cells_;  // as in Program::variables
  std::vector<size_t> cell_order_;                    // by cell id: the order of locking
  std::vector<std::atomic<MatrixOrder>> orders_;  // by variable; rows until a run has found out (tuning/order_trial.h)
  std::atomic<bool> orders_known_;
  std::atomic<uint64_t> next_step_{0};
  std::atomic<bool> takes_long_{true};

  absl::Mutex mu_;
  std::vector<std::unique_ptr<Frame>> idle_frames_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
