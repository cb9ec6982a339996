#include "muster/rpc/remote_worker.h"

#include <algorithm>
#include <utility>

#include "muster/graph/serialize.h"
#include "muster/rpc/calls/repeatable.h"
#include "muster/rpc/lease_message.h"
#include "muster/rpc/service_names.h"
#include "muster/runtime/worker/restart.h"

namespace muster {
namespace {

constexpr std::chrono::seconds kStatusTimeout(5), kRenewTimeout(10);

// A run takes as long as it takes.
CallOptions call_options(const RunOptions& options, bool once, size_t kept_tensors = SIZE_MAX) {
  return {.timeout = options.timeout,
          .cancellation = options.cancellation,
          .patient = true,
          .once = once,
          .kept_tensors = kept_tensors};
}

// For the next request: whoever answers that is to have room for it.
void note_bytes(const std::vector<at::Tensor>& outputs, std::atomic<int64_t>& bytes) {
  constexpr int64_t kMany = 64 << 10;
  int64_t sum = 0;
  for (const at::Tensor& output : outputs) sum += output.defined() ? static_cast<int64_t>(output.nbytes()) : 0;
  bytes.store(sum >= kMany ? sum : 0, std::memory_order_relaxed);
}

proto::StorageRequest storage_request(const std::string& path, const std::vector<StoredVariable>& variables) {
  proto::StorageRequest request;
  request.set_path(path);
  for (const StoredVariable& variable : variables) {
    auto* entry = request.add_variables();
    entry->set_name(variable.name);
    entry->set_dtype(static_cast<int32_t>(variable.spec.dtype));
    for (int64_t size : variable.spec.sizes) entry->add_sizes(size);
    entry->set_device(variable.device);
    entry->set_whole(variable.whole);
    for (int64_t size : variable.whole_sizes) entry->add_whole_sizes(size);
    entry->set_first_row(variable.first_row);
  }
  return request;
}

TensorSpec spec_from(const std::string& task, const std::string& variable, int32_t number,
                     const google::protobuf::RepeatedField<int64_t>& sizes) {
  const auto dtype = dtype_from_number(number);
  if (!dtype) throw data_loss(task, ": variable \"", variable, "\" has an unknown type");
  return {*dtype, {sizes.begin(), sizes.end()}};
}

WorkerStatus status_from(const Frame& frame) {
  const auto answer = header_of<proto::StatusAnswer>(frame.envelope);
  return {.task = answer.task(),
          .incarnation = answer.incarnation(),
          .devices = {answer.devices().begin(), answer.devices().end()},
          .default_device = answer.default_device(),
          .programs = answer.programs(),
          .variables = answer.variables(),
          .variable_bytes = answer.variable_bytes(),
          .sessions = answer.sessions(),
          .sources = answer.sources(),
          .requests = answer.requests(),
          .resident_bytes = answer.resident_bytes(),
          .uptime_seconds = answer.uptime_seconds(),
          .cpu_seconds = answer.cpu_seconds(),
          .run_seconds = answer.run_seconds(),
          .input_seconds = answer.input_seconds(),
          .peer_seconds = answer.peer_seconds(),
          .cores = answer.cores(),
          .machine_cores = answer.machine_cores(),
          .machine_idle_seconds = answer.machine_idle_seconds(),
          .input_stage = answer.input_stage(),
          .workers = answer.workers(),
          .lost = answer.lost()};
}

std::vector<RunOutcome> outcomes_of(Frame answer, size_t expected) {
  const auto header = header_of<proto::RunsAnswer>(answer.envelope);
  if (static_cast<size_t>(header.outcomes_size()) != expected) {
    throw data_loss(header.outcomes_size(), " outcomes for ", expected, " runs");
  }
  std::vector<RunOutcome> outcomes;
  outcomes.reserve(expected);
  size_t next = 0;
  for (const auto& entry : header.outcomes()) {
    if (entry.tensors() > answer.tensors.size() - next) throw data_loss("outcomes with fewer tensors than they say");
    RunOutcome& outcome = outcomes.emplace_back();
    if (entry.has_error()) outcome.status = from_proto(entry.error());
    outcome.took = std::chrono::nanoseconds(entry.took_ns());
    outcome.variant = entry.variant();
    for (uint32_t i = 0; i < entry.tensors(); ++i) outcome.outputs.push_back(std::move(answer.tensors[next++]));
  }
  return outcomes;
}

}  // namespace

ProgramHandle RemoteWorker::register_program(const Program& program, const Owner& owner) {
  proto::RegisterRequest request;
  request.set_program(serialize(program));
  *request.mutable_owner() = to_proto(owner);
  const Frame frame = channel_->call(worker_rpc::kRegister, with_header(request), {.once = true});
  const auto answer = header_of<proto::RegisterAnswer>(frame.envelope);
  WireForms forms = wire_forms(program);
  remember(answer.handle(), {.incarnation = answer.incarnation(),
                             .once = !repeatable(program),
                             .outputs = program.outputs.size(),
                             .forms = forms.plain() ? nullptr : std::make_shared<const WireForms>(std::move(forms))});
  return {answer.handle()};
}

// An answer of the incarnation before may come after one of the latest, so its programs stay known until there is a
// third one. A task gives its handles in order, from a number at random.
void RemoteWorker::remember(uint64_t handle, const Registered& registered) {
  constexpr size_t kMostGone = 64;
  absl::MutexLock lock(&mu_);
  const uint64_t incarnation = registered.incarnation;
  if (incarnation != incarnations_[0] && incarnation != incarnations_[1]) {
    const uint64_t dropped = std::exchange(incarnations_[1], std::exchange(incarnations_[0], incarnation));
    std::pair<uint64_t, uint64_t> handles{UINT64_MAX, 0};
    absl::erase_if(registered_, [&](const auto& entry) {
      if (entry.second.incarnation != dropped) return false;
      handles = {std::min(handles.first, entry.first), std::max(handles.second, entry.first)};
      return true;
    });
    if (handles.second != 0) gone_.push_back(handles);
    if (gone_.size() > kMostGone) gone_.pop_front();
  }
  registered_[handle] = registered;
}

RemoteWorker::Registered RemoteWorker::find(ProgramHandle handle) const {
  if (auto it = registered_.find(handle.id); it != registered_.end()) return it->second;
  for (const auto& [first, last] : gone_) {
    if (first <= handle.id && handle.id <= last) return {.incarnation = ~incarnations_[0]};  // that no task has
  }
  return {};
}

void RemoteWorker::deregister_program(ProgramHandle handle) {
  Registered known;
  {
    absl::MutexLock lock(&mu_);
    known = find(handle);
    registered_.erase(handle.id);
  }
  proto::RunRequest request;
  request.set_handle(handle.id);
  Frame frame = with_header(request);
  frame.envelope.set_incarnation(known.incarnation);
  channel_->call(worker_rpc::kDeregister, std::move(frame), {.timeout = std::chrono::seconds(10), .once = true});
}

RemoteWorker::RunRequest RemoteWorker::run_request(ProgramHandle handle, std::vector<at::Tensor> arguments,
                                                   const RunOptions& options) {
  Registered known, next;
  {
    absl::MutexLock lock(&mu_);
    known = find(handle);
    if (options.then != 0) next = find({options.then});
  }
  proto::RunRequest request;
  for (const Registered* program : {&known, &next}) {
    if (!known.forms && !next.forms) break;
    for (size_t i = 0; i < program->outputs; ++i) {
      request.add_answer_forms(program->forms ? form_here(program->forms->outputs[i]).number() : 0);
    }
  }
  request.set_handle(handle.id);
  if (options.step) request.set_step(*options.step);
  request.set_replica(options.replica);
  request.set_meeting(options.meeting);
  request.set_then(options.then);
  Frame frame = with_header(request);
  frame.envelope.set_incarnation(known.incarnation);
  frame.tensors = std::move(arguments);
  if (known.forms) {
    for (const WireForm& form : known.forms->arguments) frame.forms.push_back(form_here(form));
  }
  if (const int64_t bytes = known.answered->load(std::memory_order_relaxed); bytes > 0) {
    frame.envelope.set_answer_bytes(static_cast<uint64_t>(bytes));
  }
  // What is read along the way is not kept there.
  const size_t kept_tensors = options.then != 0 && known.incarnation != 0 ? known.outputs : SIZE_MAX;
  return {std::move(frame), known.once, known.answered, kept_tensors};
}

std::vector<at::Tensor> RemoteWorker::run(ProgramHandle handle, std::vector<at::Tensor> arguments,
                                          const RunOptions& options) {
  RunRequest request = run_request(handle, std::move(arguments), options);
  std::vector<at::Tensor> outputs =
      channel_
          ->call(worker_rpc::kRun, std::move(request.frame), call_options(options, request.once, request.kept_tensors))
          .tensors;
  note_bytes(outputs, *request.answered);
  return outputs;
}

void RemoteWorker::start(ProgramHandle handle, std::vector<at::Tensor> arguments, const RunOptions& options,
                         RunDone done) {
  RunRequest request = run_request(handle, std::move(arguments), options);
  channel_->start(worker_rpc::kRun, std::move(request.frame), call_options(options, request.once, request.kept_tensors),
                  [done = std::move(done), answered = std::move(request.answered)](const Status& status, Frame answer) {
                    if (status.ok()) note_bytes(answer.tensors, *answered);
                    done(status, std::move(answer.tensors));
                  });
}

void RemoteWorker::start_runs(std::vector<ProgramRun> runs, const RunOptions& options, RunsDone done) {
  proto::RunsRequest request;
  bool once = false, mixed = false;
  uint64_t incarnation = 0;
  {
    absl::MutexLock lock(&mu_);
    auto look_at = [&](ProgramHandle handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      const Registered known = find(handle);
      once = once || known.once;
      if (known.incarnation == 0) return;
      mixed = mixed || (incarnation != 0 && incarnation != known.incarnation);
      incarnation = known.incarnation;
    };
    for (const ProgramRun& run : runs) {
      look_at(run.handle);
      for (ProgramHandle variant : run.variants) look_at(variant);
    }
  }
  if (mixed) {
    const std::string& task = channel_->task();
    return done(restarted(task, task + " was restarted since some programs were registered"), {});
  }
  request.set_meeting(options.meeting);
  request.set_sequence(options.sequence);
  request.set_replica(options.replica);
  std::vector<at::Tensor> tensors;
  for (ProgramRun& run : runs) {
    auto* entry = request.add_runs();
    entry->set_handle(run.handle.id);
    entry->set_tensors(run.arguments.size());
    if (!run.wanted) entry->set_unwanted(true);
    for (ProgramHandle variant : run.variants) entry->add_variants(variant.id);
    for (at::Tensor& argument : run.arguments) tensors.push_back(std::move(argument));
  }
  Frame frame = with_header(request);
  frame.tensors = std::move(tensors);
  frame.envelope.set_incarnation(incarnation);
  channel_->start(worker_rpc::kRunAll, std::move(frame), call_options(options, once),
                  [done = std::move(done), count = runs.size()](const Status& status, Frame answer) {
                    if (!status.ok()) return done(status, {});
                    std::vector<RunOutcome> outcomes;
                    try {
                      outcomes = outcomes_of(std::move(answer), count);
                    } catch (const Error& error) {
                      return done(error.status(), {});
                    }
                    done({}, std::move(outcomes));
                  });
}

void RemoteWorker::open_source(uint64_t number, const std::string& description, const Owner& owner) {
  proto::SourceRequest request;
  request.set_number(number);
  request.set_description(description);
  *request.mutable_owner() = to_proto(owner);
  channel_->call(worker_rpc::kOpenSource, with_header(request), {.once = true});
}

void RemoteWorker::close_source(uint64_t number) {
  proto::SourceRequest request;
  request.set_number(number);
  channel_->call(worker_rpc::kCloseSource, with_header(request), {.timeout = std::chrono::seconds(10), .once = true});
}

std::string RemoteWorker::source_position(uint64_t number) {
  proto::SourceRequest request;
  request.set_number(number);
  const Frame answer = channel_->call(worker_rpc::kSourcePosition, with_header(request));
  return header_of<proto::PositionAnswer>(answer.envelope).position();
}

void RemoteWorker::hand_out(uint64_t number, const PartsGiven& given, const Cancellation* cancellation,
                            PartsDone wanted) {
  proto::HandOutRequest request;
  request.set_number(number);
  request.set_request(given.request);
  request.set_what(static_cast<int>(given.what));
  request.mutable_part()->set_round(given.part.round);
  request.mutable_part()->set_number(given.part.number);
  if (!given.error.ok()) *request.mutable_error() = to_proto(given.error);
  // Not once: an answer says which request it is for.
  channel_->start(worker_rpc::kHandOut, with_header(request), {.cancellation = cancellation, .patient = true},
                  [wanted = std::move(wanted)](const Status& status, const Frame& frame) {
                    if (!status.ok()) return wanted(status, {});
                    PartsWanted parts;
                    try {
                      const auto answer = header_of<proto::HandOutAnswer>(frame.envelope);
                      parts = {.request = answer.request(),
                               .parts = answer.parts(),
                               .which = answer.which(),
                               .round = answer.round(),
                               .late = answer.late(),
                               .ended = answer.ended(),
                               .idle = answer.idle(),
                               .needs = answer.needs()};
                      for (const auto& part : answer.used()) parts.used.push_back({part.round(), part.number()});
                    } catch (...) {
                      return wanted(status_of(std::current_exception()), {});
                    }
                    wanted({}, std::move(parts));
                  });
}

void RemoteWorker::receive(uint64_t meeting, int64_t edge, const RunOptions& options, ReceiveDone done) {
  proto::ReceiveRequest request;
  request.set_meeting(meeting);
  request.set_edge(edge);
  request.set_form(form_here(options.form).number());
  channel_->start(worker_rpc::kReceive, with_header(request), call_options(options, true),
                  [done = std::move(done)](const Status& status, Frame answer) {
                    if (status.ok() && answer.tensors.size() != 1) {
                      return done(Status(StatusCode::kInternal, "a received message without its tensor"), {});
                    }
                    done(status, status.ok() ? std::move(answer.tensors[0]) : at::Tensor());
                  });
}

void RemoteWorker::abort(uint64_t meeting, const Status& why) {
  proto::AbortRequest request;
  request.set_meeting(meeting);
  *request.mutable_why() = to_proto(why);
  // Who was not told keeps values that nobody will fetch: the next renewal says it again.
  channel_->start(worker_rpc::kAbort, with_header(request), {.timeout = std::chrono::seconds(10)},
                  [channel = channel_, untold = untold_, meeting](const Status& status, const Frame&) {
                    if (status.ok()) return;
                    constexpr size_t kMost = 4'096;
                    absl::MutexLock lock(&untold->mu);
                    if (untold->meetings.size() < kMost) untold->meetings.push_back(meeting);
                  });
}

void RemoteWorker::renew(const Lease& lease, RenewDone done) {
  proto::LeaseRequest request = to_proto(lease);
  std::vector<uint64_t> meetings;
  {
    absl::MutexLock lock(&untold_->mu);
    meetings.swap(untold_->meetings);
  }
  for (uint64_t meeting : meetings) request.add_aborted(meeting);
  channel_->start(worker_rpc::kRenew, with_header(request), {.timeout = kRenewTimeout},
                  [channel = channel_, untold = untold_, meetings = std::move(meetings), done = std::move(done)](
                      const Status& status, const Frame& answer) {
                    if (!status.ok()) {
                      absl::MutexLock lock(&untold->mu);
                      untold->meetings.insert(untold->meetings.end(), meetings.begin(), meetings.end());
                    }
                    tell(done, status, answer);
                  });
}

void RemoteWorker::release(const Lease& lease) {
  channel_->call(worker_rpc::kReleaseOwner, with_header(to_proto(lease)),
                 {.timeout = std::chrono::seconds(10), .once = true});
}

std::vector<VariableInfo> RemoteWorker::variables() {
  const Frame frame = channel_->call(worker_rpc::kVariables, with_header(proto::Empty()));
  std::vector<VariableInfo> infos;
  const auto answer = header_of<proto::VariablesAnswer>(frame.envelope);
  for (const auto& variable : answer.variables()) {
    infos.push_back({variable.name(), spec_from(channel_->task(), variable.name(), variable.dtype(), variable.sizes()),
                     variable.device(), variable.version(), variable.initialized(), variable.whole_reads()});
  }
  return infos;
}

std::vector<ShardEntry> RemoteWorker::save(const std::string& directory, const std::vector<StoredVariable>& variables,
                                           const SaveOptions& options) {
  proto::StorageRequest request = storage_request(directory, variables);
  request.set_beside(options.pace == SavePace::kBeside);
  if (const SaveSince& since = options.since; since.owner != 0) {
    proto::StorageRequest::Since* asked = request.mutable_since();
    asked->set_owner(since.owner);
    asked->set_base(since.base);
    asked->set_mark(since.mark);
    asked->set_most_differences(since.most_differences);
    asked->set_least_bytes(since.least_bytes);
  }
  const Frame frame = channel_->call(worker_rpc::kSave, with_header(request), {.patient = true, .once = true});
  std::vector<ShardEntry> entries;
  const auto answer = header_of<proto::StorageAnswer>(frame.envelope);
  for (const auto& entry : answer.entries()) {
    entries.push_back({entry.variable(),
                       spec_from(channel_->task(), entry.variable(), entry.dtype(), entry.sizes()),
                       {entry.whole_sizes().begin(), entry.whole_sizes().end()},
                       entry.first_row(),
                       entry.file(),
                       entry.crc()});
  }
  return entries;
}

void RemoteWorker::restore(const std::string& checkpoint, const std::vector<StoredVariable>& variables,
                           RestoreStage stage) {
  proto::StorageRequest request = storage_request(checkpoint, variables);
  request.set_only_check(stage == RestoreStage::kCheck);
  channel_->call(worker_rpc::kRestore, with_header(request), {.patient = true, .once = true});
}

void RemoteWorker::reset(const std::vector<std::string>& containers) {
  proto::ResetRequest request;
  for (const std::string& container : containers) request.add_containers(container);
  channel_->call(worker_rpc::kReset, with_header(request), {.once = true});
}

WorkerStatus RemoteWorker::status(bool wait) {
  CallOptions options{.wait_until_up = wait};
  if (!wait) options.timeout = kStatusTimeout;
  return status_from(channel_->call(worker_rpc::kStatus, with_header(proto::Empty()), options));
}

void RemoteWorker::start_status(const Cancellation& cancellation, StatusDone done) {
  // The second attempt connects anew to a task that was gone: gRPC has not tried that lately.
  const CallOptions options{.timeout = kStatusTimeout, .cancellation = &cancellation, .attempts = 2};
  channel_->start(worker_rpc::kStatus, with_header(proto::Empty()), options,
                  [channel = channel_, done = std::move(done)](const Status& status, const Frame& answer) {
                    if (!status.ok()) return done(status, {});
                    WorkerStatus of_task;
                    try {
                      of_task = status_from(answer);
                    } catch (const Error& error) {
                      return done(error.status(), {});
                    }
                    done({}, std::move(of_task));
                  });
}

}  // namespace muster
