#include "muster/runtime/executor/remote_parts.h"

#include <iterator>
#include <map>

#include "muster/base/log.h"
#include "muster/graph/end_calls.h"
#include "muster/runtime/worker/missing_program.h"
#include "muster/runtime/worker/read_ahead.h"
#include "muster/runtime/worker/restart.h"

namespace muster {

RemoteParts::RemoteParts(const Program& program, Peers& peers, ProgramRunner& here, const std::string& own_task,
                         LeaseHolder& holder)
    : programs_(program.parts), peers_(peers), own_task_(own_task), holder_(holder) {
  try {
    for (const Program& part : programs_) {
      // The worker has the program that has this: it must not keep itself.
      std::shared_ptr<ProgramRunner> runner(std::shared_ptr<void>(), &here);
      if (part.task != own_task) runner = peers.worker(part.task);
      auto made = std::make_unique<Part>(part, std::move(runner));
      register_part(*made);
      parts_.push_back(std::move(made));
    }
    const EndCalls ends = end_calls(program);
    for (int64_t part : ends.openings) parts_[part]->opens = programs_[part].task != own_task;
    for (int64_t part : ends.closings) parts_[part]->closes = programs_[part].task != own_task;
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

std::optional<std::vector<at::Tensor>> RemoteParts::had(int64_t number, const RunOptions& options) const {
  const Part& part = *parts_[number];
  if (!part.opens || options.ahead == nullptr) return std::nullopt;
  return options.ahead->take({part.runner.get(), part.handle});
}

const RemoteParts::Part* RemoteParts::opening_at(const ProgramRunner& runner) const {
  for (const auto& part : parts_) {
    if (part->opens && part->runner.get() == &runner) return part->missing ? nullptr : part.get();
  }
  return nullptr;
}

RemoteParts::Call RemoteParts::prepare(int64_t number, const RunOptions& options) const {
  Part& part = ready(number);
  Call call{part, part.handle, options, options.ahead};
  call.options.ahead = nullptr;
  if (!part.closes || call.ahead == nullptr) return call;
  if (const RemoteParts* next = call.ahead->next()) call.read = next->opening_at(*part.runner);
  if (call.read != nullptr) call.options.then = call.read->handle;
  return call;
}

// Another task is not to be trusted with what it answers.
Status RemoteParts::sort_answer(const Call& call, std::vector<at::Tensor>& outputs) {
  const size_t expected = call.part.program.outputs.size();
  const size_t more = call.read != nullptr ? call.read->program.outputs.size() : 0;
  if (more > 0 && outputs.size() == expected + more) {
    const auto first = outputs.begin() + static_cast<std::ptrdiff_t>(expected);
    call.ahead->put({call.part.runner.get(), call.options.then},
                    {std::make_move_iterator(first), std::make_move_iterator(outputs.end())});
    outputs.resize(expected);
  }
  if (outputs.size() == expected) return {};
  return {StatusCode::kInternal,
          str_cat("answered with ", outputs.size(), " tensors where its part has ", expected, " outputs"),
          call.part.program.task};
}

std::vector<at::Tensor> RemoteParts::run(int64_t number, std::vector<at::Tensor> inputs,
                                         const RunOptions& options) const {
  if (auto outputs = had(number, options)) return *std::move(outputs);
  const Call call = prepare(number, options);
  try {
    std::vector<at::Tensor> outputs = call.part.runner->run({call.handle}, std::move(inputs), call.options);
    if (const Status fits = sort_answer(call, outputs); !fits.ok()) throw Error(fits);
    return outputs;
  } catch (const Error& error) {
    throw Error(explained(call.part, call.handle, error.status()));
  }
}

void RemoteParts::start(int64_t number, std::vector<at::Tensor> inputs, const RunOptions& options, RunDone done) const {
  if (auto outputs = had(number, options)) return done({}, *std::move(outputs));
  std::shared_ptr<const Call> call;
  try {
    call = std::make_shared<const Call>(prepare(number, options));
  } catch (...) {
    return done(status_of(std::current_exception()), {});
  }
  call->part.runner->start({call->handle}, std::move(inputs), call->options,
                           [this, call, done = std::move(done)](const Status& status, std::vector<at::Tensor> outputs) {
                             const Status sorted = status.ok() ? sort_answer(*call, outputs)
                                                               : explained(call->part, call->handle, status);
                             done(sorted, std::move(outputs));
                           });
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
