#include "muster/runtime/remote_parts.h"

#include <map>

#include "muster/base/log.h"
#include "muster/runtime/restart.h"

namespace muster {

RemoteParts::RemoteParts(const std::vector<Program>& parts, Peers& peers, Worker& here, const std::string& own_task,
                         LeaseHolder& holder)
    : peers_(peers) {
  try {
    for (const Program& part : parts) {
      // The worker has the program that has this: it must not keep itself.
      const bool own = part.task == own_task;
      std::shared_ptr<Worker> worker =
          own ? std::shared_ptr<Worker>(std::shared_ptr<void>(), &here) : peers.worker(part.task);
      if (!own) holder.hold_at(part.task);
      const ProgramHandle handle = worker->register_program(part, own ? Owner{} : holder.owner());
      parts_.push_back({part.task, std::move(worker), handle});
    }
  } catch (...) {
    deregister_all();
    throw;
  }
}

RemoteParts::~RemoteParts() { deregister_all(); }

void RemoteParts::deregister_all() {
  for (const Part& part : parts_) {
    try {
      part.worker->deregister_program(part.handle);
    } catch (const Error& error) {
      // A task that is gone has forgotten its programs anyway, and one that was reset has dropped them.
      if (error.code() == StatusCode::kUnavailable || is_restart(error.status())) continue;
      if (error.code() == StatusCode::kNotFound) continue;
      MUSTER_LOG(warning) << part.task << ": program " << part.handle.id << " stays registered: " << error.what();
    }
  }
}

std::vector<at::Tensor> RemoteParts::run(int64_t part, std::vector<at::Tensor> inputs,
                                         const RunOptions& options) const {
  return parts_[part].worker->run(parts_[part].handle, std::move(inputs), options);
}

void RemoteParts::start(int64_t part, std::vector<at::Tensor> inputs, const RunOptions& options, RunDone done) const {
  parts_[part].worker->start(parts_[part].handle, std::move(inputs), options, std::move(done));
}

void RemoteParts::receive(const std::string& task, uint64_t meeting, int64_t edge, const RunOptions& options,
                          ReceiveDone done) const {
  std::shared_ptr<Worker> worker;
  try {
    worker = peers_.worker(task);
  } catch (const Error& error) {
    return done(error.status(), {});
  }
  worker->receive(meeting, edge, options, std::move(done));
}

void RemoteParts::abort(uint64_t meeting, const Status& why) const {
  std::map<std::string, Worker*> workers;
  for (const Part& part : parts_) workers[part.task] = part.worker.get();
  for (const auto& [task, worker] : workers) worker->abort(meeting, why);
}

}  // namespace muster
