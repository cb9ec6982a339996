#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <memory>
#include <vector>

#include "muster/rpc/rpc_channel.h"
#include "muster/runtime/worker.h"

namespace muster {

// The worker of another task. The incarnation that it had when a program was registered is the one that runs it: a task
// that was restarted in between answers restarted() instead of beginning anew with empty variables. Thread-safe.
class RemoteWorker : public Worker {
 public:
  explicit RemoteWorker(std::shared_ptr<RpcChannel> channel) : channel_(std::move(channel)) {}

  ProgramHandle register_program(const Program& program, const Owner& owner = {}) override;
  void deregister_program(ProgramHandle handle) override;
  std::vector<at::Tensor> run(ProgramHandle handle, std::vector<at::Tensor> arguments,
                              const RunOptions& options = {}) override;
  void start(ProgramHandle handle, std::vector<at::Tensor> arguments, const RunOptions& options, RunDone done) override;
  void start_runs(std::vector<ProgramRun> runs, const RunOptions& options, RunsDone done) override;
  void open_source(uint64_t number, const std::string& description, const Owner& owner = {}) override;
  void close_source(uint64_t number) override;
  void receive(uint64_t meeting, int64_t edge, const RunOptions& options, ReceiveDone done) override;
  void abort(uint64_t meeting, const Status& why) override;
  void renew(const Lease& lease, RenewDone done) override;
  void release(const Lease& lease) override;
  std::vector<VariableInfo> variables() override;
  std::vector<ShardEntry> save(const std::string& directory, const std::vector<StoredVariable>& variables) override;
  void restore(const std::string& checkpoint, const std::vector<StoredVariable>& variables,
               RestoreStage stage) override;
  void reset(const std::vector<std::string>& containers) override;
  void start_status(const Cancellation& cancellation, StatusDone done) override;
  WorkerStatus status(bool wait = false) override;

 private:
  struct Registered {
    uint64_t incarnation = 0;
    bool once = false;  // it writes variables, or leaves something for another part
  };

  Frame run_request(ProgramHandle handle, std::vector<at::Tensor> arguments, const RunOptions& options);

  const std::shared_ptr<RpcChannel> channel_;

  // Steps that have failed, of which the task could not be told.
  struct Untold {
    absl::Mutex mu;
    std::vector<uint64_t> meetings ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<Untold> untold_ = std::make_shared<Untold>();

  // One that is not known is of an earlier incarnation, if there was one.
  Registered find(ProgramHandle handle) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, Registered> registered_ ABSL_GUARDED_BY(mu_);  // of this incarnation
  uint64_t incarnation_ ABSL_GUARDED_BY(mu_) = 0, earlier_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace muster
