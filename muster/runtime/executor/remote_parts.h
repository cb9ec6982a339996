// What other tasks do for a program.
#pragma once

#include <absl/synchronization/mutex.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "muster/runtime/worker/lease_holder.h"
#include "muster/runtime/worker/worker.h"

namespace muster {

// The parts of a program, registered with the workers of their tasks by the constructor and deregistered by the
// destructor. Thread-safe. A task that has not heard of this one for longer than a lease has dropped its parts: that
// run fails as if this task had been lost for a while, and the next one registers them again.
class RemoteParts {
 public:
  // `here` runs those of `own_task`; the others belong to `holder`. These and `peers` outlive this. Throws what the
  // workers throw; nothing stays registered then.
  RemoteParts(const Program& program, Peers& peers, ProgramRunner& here, const std::string& own_task,
              LeaseHolder& holder);
  ~RemoteParts();
  RemoteParts(const RemoteParts&) = delete;
  RemoteParts& operator=(const RemoteParts&) = delete;

  // What `options.ahead` has is not asked for. The last call at a task reads there for the run that comes next.
  std::vector<at::Tensor> run(int64_t part, std::vector<at::Tensor> inputs, const RunOptions& options) const;
  void start(int64_t part, std::vector<at::Tensor> inputs, const RunOptions& options, RunDone done) const;
  void receive(const std::string& task, uint64_t meeting, int64_t edge, const RunOptions& options,
               ReceiveDone done) const;
  // Tells every task of the program.
  void abort(uint64_t meeting, const Status& why) const;

 private:
  struct Part {
    Part(const Program& p, std::shared_ptr<ProgramRunner> r) : program(p), runner(std::move(r)) {}
    const Program& program;
    const std::shared_ptr<ProgramRunner> runner;
    std::atomic<uint64_t> handle{0};
    std::atomic<bool> missing{true};
    bool opens = false, closes = false;  // as in EndCalls; what is run here is neither
  };
  // One call of a part, and the read of the next run that goes with it.
  struct Call {
    Part& part;
    uint64_t handle;
    RunOptions options;
    ReadAhead* ahead;            // of the run; not for whoever runs the part
    const Part* read = nullptr;  // null: none
  };

  // The part, registered.
  Part& ready(int64_t part) const;
  void register_part(Part& part) const;
  // What a failure of the part means to whoever runs the program.
  Status explained(Part& part, uint64_t handle, const Status& failure) const;
  // What the run before has read.
  std::optional<std::vector<at::Tensor>> had(int64_t part, const RunOptions& options) const;
  Call prepare(int64_t part, const RunOptions& options) const;
  // The part whose answer a program needs first of this runner's task, if it only reads.
  const Part* opening_at(const ProgramRunner& runner) const;
  // Leaves the part's own outputs, and what was read for the next run where that finds it.
  static Status sort_answer(const Call& call, std::vector<at::Tensor>& outputs);
  void deregister_all();

  const std::vector<Program> programs_;
  Peers& peers_;
  const std::string own_task_;
  LeaseHolder& holder_;
  mutable absl::Mutex registering_;
  std::vector<std::unique_ptr<Part>> parts_;
};

}  // namespace muster
