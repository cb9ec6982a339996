#include "muster/rpc/remote_worker.h"

#include "muster/graph/serialize.h"
#include "muster/rpc/repeatable.h"
#include "muster/rpc/service_names.h"

namespace muster {
namespace {

constexpr std::chrono::seconds kStatusTimeout(5);

CallOptions call_options(const RunOptions& options) {
  return {.timeout = options.timeout, .cancellation = options.cancellation};
}

}  // namespace

ProgramHandle RemoteWorker::register_program(const Program& program, const ProgramOwner& owner) {
  proto::RegisterRequest request;
  request.set_program(serialize(program));
  request.set_owner(owner.name);
  request.set_owner_incarnation(owner.incarnation);
  const Frame frame = channel_->call(worker_rpc::kRegister, with_header(request, random_id()), {.wait_until_up = true});
  const auto answer = header_of<proto::RegisterAnswer>(frame.envelope);
  absl::MutexLock lock(&mu_);
  registered_[answer.handle()] = {answer.incarnation(), !repeatable(program)};
  return {answer.handle()};
}

void RemoteWorker::deregister_program(ProgramHandle handle) {
  Registered known;
  {
    absl::MutexLock lock(&mu_);
    known = registered_[handle.id];
    registered_.erase(handle.id);
  }
  proto::RunRequest request;
  request.set_handle(handle.id);
  Frame frame = with_header(request, random_id());
  frame.envelope.set_incarnation(known.incarnation);
  channel_->call(worker_rpc::kDeregister, std::move(frame), {.timeout = std::chrono::seconds(10)});
}

Frame RemoteWorker::run_request(ProgramHandle handle, std::vector<at::Tensor> arguments, const RunOptions& options) {
  Registered known;
  {
    absl::MutexLock lock(&mu_);
    if (auto it = registered_.find(handle.id); it != registered_.end()) known = it->second;
  }
  proto::RunRequest request;
  request.set_handle(handle.id);
  if (options.step) request.set_step(*options.step);
  request.set_replica(options.replica);
  request.set_meeting(options.meeting);
  Frame frame = with_header(request, known.once ? random_id() : 0);
  frame.envelope.set_incarnation(known.incarnation);
  frame.tensors = std::move(arguments);
  return frame;
}

std::vector<at::Tensor> RemoteWorker::run(ProgramHandle handle, std::vector<at::Tensor> arguments,
                                          const RunOptions& options) {
  Frame request = run_request(handle, std::move(arguments), options);
  return channel_->call(worker_rpc::kRun, std::move(request), call_options(options)).tensors;
}

void RemoteWorker::start(ProgramHandle handle, std::vector<at::Tensor> arguments, const RunOptions& options,
                         RunDone done) {
  Frame request = run_request(handle, std::move(arguments), options);
  channel_->start(
      worker_rpc::kRun, std::move(request), call_options(options),
      [done = std::move(done)](const Status& status, Frame answer) { done(status, std::move(answer.tensors)); });
}

void RemoteWorker::receive(uint64_t meeting, int64_t edge, const RunOptions& options, ReceiveDone done) {
  proto::ReceiveRequest request;
  request.set_meeting(meeting);
  request.set_edge(edge);
  channel_->start(worker_rpc::kReceive, with_header(request, random_id()), call_options(options),
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
  channel_->start(worker_rpc::kAbort, with_header(request), {.timeout = std::chrono::seconds(10)},
                  [channel = channel_](const Status&, const Frame&) {});
}

std::vector<VariableInfo> RemoteWorker::variables() {
  const Frame frame = channel_->call(worker_rpc::kVariables, with_header(proto::Empty()));
  std::vector<VariableInfo> infos;
  const auto answer = header_of<proto::VariablesAnswer>(frame.envelope);
  for (const auto& variable : answer.variables()) {
    const auto dtype = dtype_from_number(variable.dtype());
    if (!dtype) throw data_loss(channel_->task(), ": variable \"", variable.name(), "\" has an unknown type");
    infos.push_back({variable.name(),
                     {*dtype, {variable.sizes().begin(), variable.sizes().end()}},
                     variable.device(),
                     variable.version(),
                     variable.initialized()});
  }
  return infos;
}

void RemoteWorker::reset(const std::vector<std::string>& containers) {
  proto::ResetRequest request;
  for (const std::string& container : containers) request.add_containers(container);
  channel_->call(worker_rpc::kReset, with_header(request, random_id()));
}

WorkerStatus RemoteWorker::status(bool wait) {
  CallOptions options{.wait_until_up = wait};
  if (!wait) options.timeout = kStatusTimeout;
  const Frame frame = channel_->call(worker_rpc::kStatus, with_header(proto::Empty()), options);
  const auto answer = header_of<proto::StatusAnswer>(frame.envelope);
  WorkerStatus status{.task = answer.task(),
                      .incarnation = answer.incarnation(),
                      .devices = {answer.devices().begin(), answer.devices().end()},
                      .default_device = answer.default_device(),
                      .programs = answer.programs(),
                      .variables = answer.variables(),
                      .variable_bytes = answer.variable_bytes(),
                      .sessions = answer.sessions(),
                      .requests = answer.requests(),
                      .resident_bytes = answer.resident_bytes(),
                      .uptime_seconds = answer.uptime_seconds()};
  return status;
}

}  // namespace muster
