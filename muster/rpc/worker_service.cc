#include "muster/rpc/worker_service.h"

#include "muster/graph/serialize.h"
#include "muster/rpc/lease_message.h"
#include "muster/rpc/service_names.h"

namespace muster {
namespace {

// Whoever gives no name has a lease all the same, for this one thing, which using it renews: nothing that comes over
// the wire stays for ever.
Owner owner_of(const proto::Owner& owner, const RpcCall& call) {
  if (owner.id() != 0) return from_proto(owner);
  return {random_id(), str_cat("somebody at ", call.peer())};
}

WireForm form_from(uint32_t number) {
  const std::optional<WireForm> form = WireForm::from_number(number);
  if (!form) throw invalid_argument("form ", number, " of an answer is unknown");
  return *form;
}

void renew(LocalWorker& worker, const std::shared_ptr<RpcCall>& call) {
  const auto request = header_of<proto::LeaseRequest>(call->request().envelope);
  for (uint64_t meeting : request.aborted()) {
    worker.abort(meeting, Status(StatusCode::kCancelled, "the step has failed elsewhere"));
  }
  worker.renew(from_proto(request), [call](const Status& status, const LeaseTerms& terms) {
    status.ok() ? call->answer(lease_answer(terms)) : call->fail(status);
  });
}

void release_owner(LocalWorker& worker, RpcCall& call) {
  worker.release(from_proto(header_of<proto::LeaseRequest>(call.request().envelope)));
  call.answer({});
}

void register_program(LocalWorker& worker, RpcCall& call) {
  const auto request = header_of<proto::RegisterRequest>(call.request().envelope);
  const ProgramHandle handle = worker.register_bytes(request.program(), owner_of(request.owner(), call));
  proto::RegisterAnswer answer;
  answer.set_handle(handle.id);
  answer.set_incarnation(worker.incarnation());
  call.answer(with_header(answer));
}

void deregister_program(LocalWorker& worker, RpcCall& call) {
  worker.deregister_program({header_of<proto::RunRequest>(call.request().envelope).handle()});
  call.answer({});
}

void run(LocalWorker& worker, RpcCall& call) {
  const auto request = header_of<proto::RunRequest>(call.request().envelope);
  RunOptions options{.replica = request.replica(), .cancellation = &call.cancellation(), .meeting = request.meeting()};
  if (request.has_step()) options.step = request.step();
  Frame answer;
  for (uint32_t number : request.answer_forms()) answer.forms.push_back(form_from(number));
  answer.tensors = worker.run({request.handle()}, std::move(call.request().tensors), options);
  if (request.then() != 0) {
    std::vector<at::Tensor> read = worker.run_along({request.then()}, options);
    answer.fleeting = read.size();
    for (at::Tensor& tensor : read) answer.tensors.push_back(std::move(tensor));
  }
  call.answer(std::move(answer));
}

Frame answer_of(std::vector<RunOutcome> outcomes) {
  proto::RunsAnswer answer;
  std::vector<at::Tensor> outputs;
  for (RunOutcome& outcome : outcomes) {
    auto* entry = answer.add_outcomes();
    if (!outcome.status.ok()) *entry->mutable_error() = to_proto(outcome.status);
    entry->set_tensors(outcome.outputs.size());
    entry->set_took_ns(outcome.took.count());
    entry->set_variant(outcome.variant);
    for (at::Tensor& output : outcome.outputs) outputs.push_back(std::move(output));
  }
  Frame frame = with_header(answer);
  frame.tensors = std::move(outputs);
  return frame;
}

void run_all(LocalWorker& worker, const std::shared_ptr<RpcCall>& call) {
  const auto request = header_of<proto::RunsRequest>(call->request().envelope);
  std::vector<at::Tensor>& tensors = call->request().tensors;
  std::vector<ProgramRun> runs;
  runs.reserve(request.runs_size());
  size_t next = 0;
  for (const auto& run : request.runs()) {
    if (run.tensors() > tensors.size() - next) throw invalid_argument("a message with fewer tensors than it says");
    runs.push_back({.handle = {run.handle()}, .wanted = !run.unwanted()});
    for (uint32_t i = 0; i < run.tensors(); ++i) runs.back().arguments.push_back(std::move(tensors[next++]));
    for (uint64_t variant : run.variants()) runs.back().variants.push_back({variant});
  }
  const RunOptions options{.replica = request.replica(),
                           .cancellation = &call->cancellation(),
                           .meeting = request.meeting(),
                           .sequence = request.sequence()};
  worker.run_in_turn(std::move(runs), options, [call](std::vector<RunOutcome> outcomes) {
    Frame answer;
    try {
      answer = answer_of(std::move(outcomes));
    } catch (...) {
      return call->fail(status_of(std::current_exception()));
    }
    call->answer(std::move(answer));
  });
}

void open_source(LocalWorker& worker, RpcCall& call) {
  const auto request = header_of<proto::SourceRequest>(call.request().envelope);
  worker.open_source(request.number(), request.description(), owner_of(request.owner(), call));
  call.answer({});
}

void close_source(LocalWorker& worker, RpcCall& call) {
  worker.close_source(header_of<proto::SourceRequest>(call.request().envelope).number());
  call.answer({});
}

void source_position(LocalWorker& worker, RpcCall& call) {
  proto::PositionAnswer answer;
  answer.set_position(worker.source_position(header_of<proto::SourceRequest>(call.request().envelope).number()));
  call.answer(with_header(answer));
}

void hand_out(LocalWorker& worker, const std::shared_ptr<RpcCall>& call) {
  const auto request = header_of<proto::HandOutRequest>(call->request().envelope);
  PartsGiven given{.request = request.request(),
                   .what = static_cast<PartsGiven::What>(request.what()),
                   .part = {request.part().round(), request.part().number()}};
  if (request.what() < 0 || given.what > PartsGiven::What::kError) {
    throw invalid_argument("an answer of kind ", request.what(), " to a request for parts");
  }
  if (given.what == PartsGiven::What::kError) given.error = from_proto(request.error());
  worker.hand_out(request.number(), given, &call->cancellation(), [call](const Status& status, PartsWanted wanted) {
    if (!status.ok()) return call->fail(status);
    proto::HandOutAnswer answer;
    answer.set_request(wanted.request);
    answer.set_parts(wanted.parts);
    answer.set_which(wanted.which);
    answer.set_round(wanted.round);
    answer.set_late(wanted.late);
    answer.set_ended(wanted.ended);
    answer.set_idle(wanted.idle);
    answer.set_needs(wanted.needs);
    for (const SourcePart& part : wanted.used) {
      proto::PartNumber& used = *answer.add_used();
      used.set_round(part.round);
      used.set_number(part.number);
    }
    call->answer(with_header(answer));
  });
}

void receive(LocalWorker& worker, const std::shared_ptr<RpcCall>& call) {
  const auto request = header_of<proto::ReceiveRequest>(call->request().envelope);
  worker.receive(request.meeting(), request.edge(), {.cancellation = &call->cancellation()},
                 [call, form = form_from(request.form())](const Status& status, at::Tensor value) {
                   if (!status.ok()) return call->fail(status);
                   Frame answer;
                   answer.tensors.push_back(std::move(value));
                   answer.forms.push_back(form);
                   call->answer(std::move(answer));
                 });
}

void abort(LocalWorker& worker, RpcCall& call) {
  const auto request = header_of<proto::AbortRequest>(call.request().envelope);
  worker.abort(request.meeting(), from_proto(request.why()));
  call.answer({});
}

void variables(LocalWorker& worker, RpcCall& call) {
  proto::VariablesAnswer answer;
  for (const VariableInfo& info : worker.variables()) {
    auto* variable = answer.add_variables();
    variable->set_name(info.name);
    variable->set_dtype(static_cast<int32_t>(info.spec.dtype));
    for (int64_t size : info.spec.sizes) variable->add_sizes(size);
    variable->set_device(info.device);
    variable->set_version(info.version);
    variable->set_initialized(info.initialized);
    variable->set_whole_reads(info.whole_reads);
  }
  call.answer(with_header(answer));
}

TensorSpec spec_from(int32_t number, const google::protobuf::RepeatedField<int64_t>& sizes) {
  const auto dtype = dtype_from_number(number);
  if (!dtype) throw invalid_argument("type ", number, " of a variable is unknown");
  return {*dtype, {sizes.begin(), sizes.end()}};
}

std::vector<StoredVariable> variables_of(const proto::StorageRequest& request) {
  std::vector<StoredVariable> variables;
  for (const auto& variable : request.variables()) {
    variables.push_back({variable.name(),
                         spec_from(variable.dtype(), variable.sizes()),
                         variable.device(),
                         variable.whole(),
                         {variable.whole_sizes().begin(), variable.whole_sizes().end()},
                         variable.first_row()});
  }
  return variables;
}

void save(LocalWorker& worker, RpcCall& call) {
  const auto request = header_of<proto::StorageRequest>(call.request().envelope);
  proto::StorageAnswer answer;
  const auto& since = request.since();
  const SaveOptions options{.pace = request.beside() ? SavePace::kBeside : SavePace::kFull,
                            .since = {.owner = since.owner(),
                                      .base = since.base(),
                                      .mark = since.mark(),
                                      .most_differences = since.most_differences(),
                                      .least_bytes = since.least_bytes()}};
  for (const ShardEntry& entry : worker.save(request.path(), variables_of(request), options)) {
    auto* written = answer.add_entries();
    written->set_variable(entry.variable);
    written->set_dtype(static_cast<int32_t>(entry.spec.dtype));
    for (int64_t size : entry.spec.sizes) written->add_sizes(size);
    for (int64_t size : entry.full_sizes) written->add_whole_sizes(size);
    written->set_first_row(entry.row_offset);
    written->set_file(entry.file);
    written->set_crc(entry.crc);
  }
  call.answer(with_header(answer));
}

void restore(LocalWorker& worker, RpcCall& call) {
  const auto request = header_of<proto::StorageRequest>(call.request().envelope);
  worker.restore(request.path(), variables_of(request),
                 request.only_check() ? RestoreStage::kCheck : RestoreStage::kApply);
  call.answer({});
}

void reset(LocalWorker& worker, RpcCall& call) {
  const auto request = header_of<proto::ResetRequest>(call.request().envelope);
  worker.reset({request.containers().begin(), request.containers().end()});
  call.answer({});
}

void status(LocalWorker& worker, const std::function<void(WorkerStatus&)>& complete, RpcCall& call) {
  WorkerStatus status = worker.status();
  if (complete) complete(status);
  proto::StatusAnswer answer;
  answer.set_task(status.task);
  answer.set_incarnation(status.incarnation);
  for (const std::string& device : status.devices) answer.add_devices(device);
  answer.set_default_device(status.default_device);
  answer.set_programs(status.programs);
  answer.set_variables(status.variables);
  answer.set_variable_bytes(status.variable_bytes);
  answer.set_sessions(status.sessions);
  answer.set_requests(status.requests);
  answer.set_resident_bytes(status.resident_bytes);
  answer.set_sources(status.sources);
  answer.set_uptime_seconds(status.uptime_seconds);
  answer.set_cpu_seconds(status.cpu_seconds);
  answer.set_run_seconds(status.run_seconds);
  answer.set_input_seconds(status.input_seconds);
  answer.set_peer_seconds(status.peer_seconds);
  answer.set_cores(status.cores);
  answer.set_machine_cores(status.machine_cores);
  answer.set_machine_idle_seconds(status.machine_idle_seconds);
  answer.set_input_stage(status.input_stage);
  answer.set_workers(status.workers);
  answer.set_lost(status.lost);
  call.answer(with_header(answer));
}

}  // namespace

std::vector<RpcServer::MethodEntry> worker_methods(LocalWorker& worker, std::function<void(WorkerStatus&)> complete) {
  using Call = std::shared_ptr<RpcCall>;
  using Pace = RpcServer::Pace;
  return {
      {worker_rpc::kRegister, [&worker](const Call& call) { register_program(worker, *call); }, true},
      {worker_rpc::kDeregister, [&worker](const Call& call) { deregister_program(worker, *call); }, true},
      {worker_rpc::kRun, [&worker](const Call& call) { run(worker, *call); }, true, Pace::kRun},
      {worker_rpc::kRunAll, [&worker](const Call& call) { run_all(worker, call); }, true, Pace::kRun},
      {worker_rpc::kOpenSource, [&worker](const Call& call) { open_source(worker, *call); }, true},
      {worker_rpc::kCloseSource, [&worker](const Call& call) { close_source(worker, *call); }, true},
      {worker_rpc::kSourcePosition, [&worker](const Call& call) { source_position(worker, *call); }},
      {worker_rpc::kHandOut, [&worker](const Call& call) { hand_out(worker, call); }, false, Pace::kQuick},
      {worker_rpc::kReceive, [&worker](const Call& call) { receive(worker, call); }, true, Pace::kQuick},
      {worker_rpc::kAbort, [&worker](const Call& call) { abort(worker, *call); }, false, Pace::kQuick},
      {worker_rpc::kRenew, [&worker](const Call& call) { renew(worker, call); }, false, Pace::kQuick},
      {worker_rpc::kReleaseOwner, [&worker](const Call& call) { release_owner(worker, *call); }, true},
      {worker_rpc::kVariables, [&worker](const Call& call) { variables(worker, *call); }},
      {worker_rpc::kSave, [&worker](const Call& call) { save(worker, *call); }, true},
      {worker_rpc::kRestore, [&worker](const Call& call) { restore(worker, *call); }, true},
      {worker_rpc::kReset, [&worker](const Call& call) { reset(worker, *call); }, true},
      {worker_rpc::kStatus,
       [&worker, complete = std::move(complete)](const Call& call) { status(worker, complete, *call); }, false,
       Pace::kShort},
  };
}

}  // namespace muster
