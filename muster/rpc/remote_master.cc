#include "muster/rpc/remote_master.h"

#include "muster/graph/serialize.h"
#include "muster/rpc/calls/repeatable.h"
#include "muster/rpc/lease_message.h"
#include "muster/rpc/service_names.h"

namespace muster {
namespace {

constexpr std::chrono::seconds kCloseTimeout(10);

}  // namespace

std::string RemoteMaster::create_session(const SessionConfig& config) {
  proto::CreateSessionRequest request;
  request.set_container(config.container);
  request.set_isolated(config.isolated);
  for (const std::string& filter : config.device_filters) request.add_device_filters(filter);
  request.set_soft_placement(config.soft_placement);
  request.set_log_device_placement(config.log_device_placement);
  const Frame answer = channel_->call(master_rpc::kCreate, with_header(request), {.wait_until_up = true, .once = true});
  return header_of<proto::SessionAnswer>(answer.envelope).session();
}

ProgramHandle RemoteMaster::extend(const std::string& session, const Program& program) {
  proto::SessionRequest request;
  request.set_session(session);
  request.set_program(serialize(program));
  const Frame answer = channel_->call(master_rpc::kExtend, with_header(request), {.once = true});
  const ProgramHandle handle{header_of<proto::SessionAnswer>(answer.envelope).handle()};
  if (!repeatable(program)) {
    absl::MutexLock lock(&mu_);
    once_.insert(handle.id);
  }
  return handle;
}

std::vector<at::Tensor> RemoteMaster::run(const std::string& session, ProgramHandle handle,
                                          std::vector<at::Tensor> arguments, const RunOptions& options) {
  proto::RunRequest request;
  request.set_session(session);
  request.set_handle(handle.id);
  if (options.step) request.set_step(*options.step);
  request.set_replica(options.replica);
  bool once = false;
  {
    absl::MutexLock lock(&mu_);
    once = once_.contains(handle.id);
  }
  Frame frame = with_header(request);
  frame.tensors = std::move(arguments);
  const CallOptions call{
      .timeout = options.timeout, .cancellation = options.cancellation, .patient = true, .once = once};
  return channel_->call(master_rpc::kRun, std::move(frame), call).tensors;
}

void RemoteMaster::release(const std::string& session, ProgramHandle handle) {
  {
    absl::MutexLock lock(&mu_);
    once_.erase(handle.id);
  }
  proto::SessionRequest request;
  request.set_session(session);
  request.set_handle(handle.id);
  channel_->call(master_rpc::kRelease, with_header(request), {.timeout = kCloseTimeout, .once = true});
}

void RemoteMaster::close_session(const std::string& session) {
  proto::SessionRequest request;
  request.set_session(session);
  channel_->call(master_rpc::kClose, with_header(request), {.timeout = kCloseTimeout, .once = true});
}

void RemoteMaster::renew(const std::string& session, RenewDone done) {
  proto::SessionRequest request;
  request.set_session(session);
  channel_->start(master_rpc::kRenew, with_header(request), {.timeout = kCloseTimeout},
                  [channel = channel_, done = std::move(done)](const Status& status, const Frame& answer) {
                    tell(done, status, answer);
                  });
}

ClusterDevices RemoteMaster::list_devices() {
  const Frame frame = channel_->call(master_rpc::kDevices, with_header(proto::Empty()), {.wait_until_up = true});
  const auto answer = header_of<proto::DevicesAnswer>(frame.envelope);
  ClusterDevices devices{.devices = {answer.devices().begin(), answer.devices().end()}};
  for (const auto& error : answer.unreachable()) devices.unreachable.push_back(from_proto(error));
  return devices;
}

void RemoteMaster::reset(const std::vector<std::string>& containers) {
  proto::ResetRequest request;
  for (const std::string& container : containers) request.add_containers(container);
  channel_->call(master_rpc::kReset, with_header(request), {.once = true});
}

}  // namespace muster
