// How a LocalWorker runs its programs.
#include <algorithm>
#include <utility>

#include "muster/base/blocking.h"
#include "muster/base/status.h"
#include "muster/runtime/executor/executor.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/runtime/worker/read_ahead.h"

namespace muster {

std::vector<at::Tensor> LocalWorker::run(ProgramHandle handle, std::vector<at::Tensor> arguments,
                                         const RunOptions& options) {
  std::vector<at::Tensor> outputs = options.timeout ? run_in_time(handle, std::move(arguments), options)
                                                    : run_program(handle, std::move(arguments), options);
  if (options.then == 0) return outputs;
  for (at::Tensor& output : run_along({options.then}, options)) outputs.push_back(std::move(output));
  return outputs;
}

std::vector<at::Tensor> LocalWorker::run_along(ProgramHandle handle, const RunOptions& options) {
  try {
    return run_program(handle, {}, {.cancellation = options.cancellation});
  } catch (...) {
    return {};  // whoever needs it runs it again, and hears why
  }
}

std::vector<at::Tensor> LocalWorker::run_program(ProgramHandle handle, std::vector<at::Tensor> arguments,
                                                 const RunOptions& options) {
  MemoryPool::Budget budget(run_memory_);
  MemoryPool::Use pool({.pooled = options_.keep_memory, .budget = &budget});
  const Runnable program = runnable(handle);
  if (program.executor->takes_long()) about_to_block();
  RunOptions with_owner = options;
  with_owner.owner = program.owner;
  if (with_owner.replica == 0) with_owner.replica = replica_.load(std::memory_order_relaxed);
  try {
    return program.executor->run(std::move(arguments), with_owner);
  } catch (const Error& error) {
    const Status& why = error.status();
    absl::MutexLock lock(&mu_);
    if (known_as_.empty() || why.task() != devices_.task()) throw;
    throw Error(Status(why.code(), why.message(), known_as_, why.detail()));
  }
}

void LocalWorker::set_replica(uint64_t replica, const std::string& task) {
  replica_ = replica;
  absl::MutexLock lock(&mu_);
  known_as_ = task;
}

std::vector<at::Tensor> LocalWorker::run_in_time(ProgramHandle handle, std::vector<at::Tensor> arguments,
                                                 const RunOptions& options) {
  Cancellation cancellation;
  Cancellation::Registration given_up;
  if (options.cancellation != nullptr) {
    given_up = options.cancellation->on_cancel([&](const Status& why) { cancellation.cancel(why); });
  }
  const DeadlineTimer::Alarm alarm =
      timer_.after(absl::FromChrono(*options.timeout), [&, limit = options.timeout->count()] {
        cancellation.cancel(Status(StatusCode::kDeadlineExceeded, str_cat("the step did not end within ", limit, " ms"),
                                   devices_.task()));
      });
  RunOptions inner = options;
  inner.timeout.reset();
  inner.cancellation = &cancellation;
  try {
    return run_program(handle, std::move(arguments), inner);
  } catch (const Error& error) {
    // Whoever was cancelled in the middle of a call only knows that; why is known here.
    if (cancellation.cancelled() && error.code() == StatusCode::kCancelled) throw Error(cancellation.status());
    throw;
  }
}

void LocalWorker::start(ProgramHandle handle, std::vector<at::Tensor> arguments, const RunOptions& options,
                        RunDone done) {
  pool_.submit([this, handle, arguments = std::move(arguments), options, done = std::move(done)]() mutable {
    prepare_thread();
    std::vector<at::Tensor> outputs;
    Status status;
    try {
      outputs = run(handle, std::move(arguments), options);
    } catch (...) {
      status = status_of(std::current_exception()).from(devices_.task());
    }
    done(status, std::move(outputs));
  });
}

RunTurns::Work LocalWorker::turn_of(std::vector<ProgramRun> runs, const RunOptions& options,
                                    std::function<void(std::vector<RunOutcome>)> done) {
  return [this, runs = std::move(runs), options, done = std::move(done)](ReadAhead& ahead) mutable {
    done(run_all(std::move(runs), options, ahead));
  };
}

void LocalWorker::start_runs(std::vector<ProgramRun> runs, const RunOptions& options, RunsDone done) {
  const uint64_t first = runs.empty() ? 0 : runs[0].handle.id;
  auto tell = [done = std::move(done)](std::vector<RunOutcome> outcomes) { done({}, std::move(outcomes)); };
  RunTurns::Work work = turn_of(std::move(runs), options, std::move(tell));
  // Whoever is at work does this, too: another thread would be woken to find that out.
  if (options.sequence != 0 && turns_.join(options.sequence, first, work)) return;
  pool_.submit([this, work = std::move(work), sequence = options.sequence, first]() mutable {
    prepare_thread();
    if (sequence != 0) return turns_.take(sequence, first, std::move(work));
    ReadAhead ahead;
    work(ahead);
  });
}

void LocalWorker::run_in_turn(std::vector<ProgramRun> runs, const RunOptions& options,
                              std::function<void(std::vector<RunOutcome>)> done) {
  if (options.sequence == 0) {
    ReadAhead ahead;
    return done(run_all(std::move(runs), options, ahead));
  }
  const uint64_t first = runs.empty() ? 0 : runs[0].handle.id;
  turns_.take(options.sequence, first, turn_of(std::move(runs), options, std::move(done)));
}

std::shared_ptr<const RemoteParts> LocalWorker::parts_of(uint64_t program) const {
  absl::MutexLock lock(&mu_);
  const auto found = programs_.find(program);
  return found == programs_.end() ? nullptr : found->second.executor->parts();
}

std::vector<RunOutcome> LocalWorker::run_all(std::vector<ProgramRun> runs, const RunOptions& given, ReadAhead& ahead) {
  std::vector<RunOutcome> outcomes(runs.size());
  Cancellation cancellation;
  Cancellation::Registration outer;
  if (given.cancellation != nullptr) {
    outer = given.cancellation->on_cancel([&](const Status& why) { cancellation.cancel(why); });
  }
  RunOptions options = given;
  options.cancellation = &cancellation;
  options.meeting = 0;  // each run has its own
  options.times = &times_;
  options.ahead = &ahead;
  if (given.meeting != 0) {
    absl::MutexLock lock(&mu_);
    running_[given.meeting] = &cancellation;
    if (std::find(aborted_.begin(), aborted_.end(), given.meeting) != aborted_.end()) cancellation.cancel();
  }
  const AddTime running(&times_.running);
  auto begin = std::chrono::steady_clock::now();
  for (size_t i = 0; i < runs.size(); ++i) {
    ahead.begin([this, &runs, &given, after = i + 1] {
      return parts_of(after < runs.size() ? runs[after].handle.id : turns_.next_program(given.sequence));
    });
    outcomes[i] = run_one(std::move(runs[i]), options);
    if (!outcomes[i].status.ok()) ahead.fail();
    const auto end = std::chrono::steady_clock::now();
    outcomes[i].took = end - begin;
    begin = end;
  }
  if (given.meeting != 0) {
    absl::MutexLock lock(&mu_);
    running_.erase(given.meeting);
  }
  return outcomes;
}

RunOutcome LocalWorker::run_one(ProgramRun run, const RunOptions& options) {
  RunOutcome outcome;
  for (std::optional<uint32_t> next = 0; next;) {
    outcome.variant = *next;
    next.reset();
    try {
      const ProgramHandle handle = outcome.variant == 0 ? run.handle : run.variants[outcome.variant - 1];
      std::vector<at::Tensor> outputs =
          this->run(handle, run.variants.empty() ? std::move(run.arguments) : run.arguments, options);
      outcome.status = {};
      if (run.wanted) outcome.outputs = std::move(outputs);
    } catch (...) {
      outcome.status = status_of(std::current_exception()).from(devices_.task());
      // Another run may have taken the elements meanwhile; then it is the other program's turn again.
      next = fitting(run, outcome.status);
    }
  }
  return outcome;
}

std::optional<uint32_t> LocalWorker::fitting(const ProgramRun& run, const Status& failure) const {
  if (run.variants.empty()) return std::nullopt;
  const std::optional<ElementSpecs> found = other_elements_of(failure);
  if (!found) return std::nullopt;
  absl::MutexLock lock(&mu_);
  for (uint32_t i = 0; i <= run.variants.size(); ++i) {
    auto it = programs_.find((i == 0 ? run.handle : run.variants[i - 1]).id);
    if (it != programs_.end() && it->second.executor->elements() == *found) return i;
  }
  return std::nullopt;
}

}  // namespace muster
