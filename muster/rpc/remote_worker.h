#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "muster/graph/wire_forms.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/runtime/worker/worker.h"

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
  std::string source_position(uint64_t number) override;
  void hand_out(uint64_t number, const PartsGiven& given, const Cancellation* cancellation, PartsDone wanted) override;
  void receive(uint64_t meeting, int64_t edge, const RunOptions& options, ReceiveDone done) override;
  void abort(uint64_t meeting, const Status& why) override;
  void renew(const Lease& lease, RenewDone done) override;
  void release(const Lease& lease) override;
  std::vector<VariableInfo> variables() override;
  std::vector<ShardEntry> save(const std::string& directory, const std::vector<StoredVariable>& variables,
                               const SaveOptions& options) override;
  void restore(const std::string& checkpoint, const std::vector<StoredVariable>& variables,
               RestoreStage stage) override;
  void reset(const std::vector<std::string>& containers) override;
  void start_status(const Cancellation& cancellation, StatusDone done) override;
  WorkerStatus status(bool wait = false) override;

 private:
  struct Registered {
    uint64_t incarnation = 0;
    bool once = true;  // it writes variables, or leaves something for another part
    size_t outputs = 0;
    std::shared_ptr<const WireForms> forms{};  // null: all travels as it is
    std::shared_ptr<std::atomic<int64_t>> answered = std::make_shared<std::atomic<int64_t>>(0);  // bytes, the last time
  };

  struct RunRequest {
    Frame frame{};
    bool once = false;
    std::shared_ptr<std::atomic<int64_t>> answered{};
    size_t kept_tensors = SIZE_MAX;  // of the answer
  };
  RunRequest run_request(ProgramHandle handle, std::vector<at::Tensor> arguments, const RunOptions& options)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Nothing is rounded or compressed on the way from memory to memory unless asked for.
  WireForm form_here(const WireForm& form) const {
    return form.same_machine || (!form.plain() && channel_->apart()) ? form : WireForm{};
  }
  void remember(uint64_t handle, const Registered& registered) ABSL_LOCKS_EXCLUDED(mu_);
  // What the task is told of a program: if it is not known, nothing, and the task says what is wrong.
  Registered find(ProgramHandle handle) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<RpcChannel> channel_;

  // Steps that have failed, of which the task could not be told.
  struct Untold {
    absl::Mutex mu;
    std::vector<uint64_t> meetings ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<Untold> untold_ = std::make_shared<Untold>();

  absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, Registered> registered_ ABSL_GUARDED_BY(mu_);  // with the last two incarnations
  uint64_t incarnations_[2] ABSL_GUARDED_BY(mu_) = {0, 0};                     // the latest first
  std::deque<std::pair<uint64_t, uint64_t>> gone_ ABSL_GUARDED_BY(mu_);        // first and last handle of those before
};

}  // namespace muster
