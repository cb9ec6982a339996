// What other tasks do for a program.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "muster/runtime/lease_holder.h"
#include "muster/runtime/worker.h"

namespace muster {

// The parts of a program, registered with the workers of their tasks by the constructor and deregistered by the
// destructor. Immutable after construction, so free to share between threads.
class RemoteParts {
 public:
  // `here` runs those of `own_task`; the others belong to `holder`. These and `peers` outlive this. Throws what the
  // workers throw; nothing stays registered then.
  RemoteParts(const std::vector<Program>& parts, Peers& peers, Worker& here, const std::string& own_task,
              LeaseHolder& holder);
  ~RemoteParts();
  RemoteParts(const RemoteParts&) = delete;
  RemoteParts& operator=(const RemoteParts&) = delete;

  const std::string& task(int64_t part) const { return parts_[part].task; }

  std::vector<at::Tensor> run(int64_t part, std::vector<at::Tensor> inputs, const RunOptions& options) const;
  void start(int64_t part, std::vector<at::Tensor> inputs, const RunOptions& options, RunDone done) const;
  void receive(const std::string& task, uint64_t meeting, int64_t edge, const RunOptions& options,
               ReceiveDone done) const;
  // Tells every task of the program.
  void abort(uint64_t meeting, const Status& why) const;

 private:
  struct Part {
    std::string task;
    std::shared_ptr<Worker> worker;
    ProgramHandle handle;
  };

  void deregister_all();

  Peers& peers_;
  std::vector<Part> parts_;
};

}  // namespace muster
