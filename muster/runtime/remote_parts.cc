#include "muster/runtime/remote_parts.h"

#include <map>

#include "muster/base/log.h"
#include "muster/runtime/missing_program.h"
#include "muster/runtime/restart.h"

namespace muster {

RemoteParts::RemoteParts(const std::vector<Program>& parts, Peers& peers, ProgramRunner& here,
                         const std::string& own_task, LeaseHolder& holder)
    : programs_(parts), peers_(peers), own_task_(own_task), holder_(holder) {
  try {
    for (const Program& part : programs_) {
      // The worker has the program that has this: it must not keep itself.
      std::shared_ptr<ProgramRunner> runner(std::shared_ptr<void>(), &here);
      if (part.task != own_task) runner = peers.worker(part.task);
      auto made = std::make_unique<Part>(part, std::move(runner));
      register_part(*made);
      parts_.push_back(std::move(made));
    }
  } catch (...) {
    deregister_all();
    throw;
  }
}

RemoteParts::~RemoteParts() { deregister_all(); }

void RemoteParts::register_part(Part& part) const {
  const bool own = part.program.task == own_task_;
  if (!own) holder_.hold_at(part.program.task);
  part.handle = part.runner->register_program(part.program, own ? Owner{} : holder_.owner()).id;
  part.missing = false;
}

RemoteParts::Part& RemoteParts::ready(int64_t number) const {
  Part& part = *parts_[number];
  if (!part.missing.load(std::memory_order_acquire)) return part;
  absl::MutexLock lock(&registering_);
  if (part.missing) register_part(part);
  return part;
}

Status RemoteParts::explained(Part& part, uint64_t handle, const Status& failure) const {
  if (!is_missing_program(failure)) return failure;
  if (part.handle == handle) part.missing = true;  // else another run has found out before
  return {StatusCode::kUnavailable,
          str_cat(own_task_, " was out of reach of ", part.program.task,
                  ", which has dropped its programs: ", failure.message()),
          own_task_};
}

void RemoteParts::deregister_all() {
  for (const auto& part : parts_) {
    if (part->missing) continue;
    try {
      part->runner->deregister_program({part->handle});
    } catch (const Error& error) {
      // A task that is gone has forgotten its programs anyway, and one that was reset has dropped them.
      if (error.code() == StatusCode::kUnavailable || is_restart(error.status())) continue;
      if (error.code() == StatusCode::kNotFound) continue;
      MUSTER_LOG(warning) << part->program.task << ": program " << part->handle
                          << " stays registered: " << error.what();
    }
  }
}

std::vector<at::Tensor> RemoteParts::run(int64_t number, std::vector<at::Tensor> inputs,
                                         const RunOptions& options) const {
  Part& part = ready(number);
  const uint64_t handle = part.handle;
  try {
    std::vector<at::Tensor> outputs = part.runner->run({handle}, std::move(inputs), options);
    if (const Status fits = check_answer(part, outputs); !fits.ok()) throw Error(fits);
    return outputs;
  } catch (const Error& error) {
    throw Error(explained(part, handle, error.status()));
  }
}

void RemoteParts::start(int64_t number, std::vector<at::Tensor> inputs, const RunOptions& options, RunDone done) const {
  Part* part = nullptr;
  try {
    part = &ready(number);
  } catch (...) {
    return done(status_of(std::current_exception()), {});
  }
  const uint64_t handle = part->handle;
  part->runner->start(
      {handle}, std::move(inputs), options,
      [this, part, handle, done = std::move(done)](const Status& status, std::vector<at::Tensor> outputs) {
        const Status checked = status.ok() ? check_answer(*part, outputs) : explained(*part, handle, status);
        done(checked, std::move(outputs));
      });
}

// Another task is not to be trusted with what it answers.
Status RemoteParts::check_answer(const Part& part, const std::vector<at::Tensor>& outputs) {
  const size_t expected = part.program.outputs.size();
  if (outputs.size() == expected) return {};
  return {StatusCode::kInternal,
          str_cat("answered with ", outputs.size(), " tensors where its part has ", expected, " outputs"),
          part.program.task};
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
  std::map<std::string, ProgramRunner*> runners;
  for (const auto& part : parts_) runners[part->program.task] = part->runner.get();
  for (const auto& [task, runner] : runners) runner->abort(meeting, why);
}

}  // namespace muster
