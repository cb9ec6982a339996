#include "muster/session/session.h"

#include "muster/base/log.h"
#include "muster/rpc/remote_master.h"
#include "muster/runtime/master.h"
#include "muster/runtime/tensors.h"
#include "muster/session/local_master.h"
#include "muster/trace/variable_programs.h"

namespace muster {
namespace {

constexpr std::string_view kScheme = "grpc://";

std::shared_ptr<Master> connect(const SessionOptions& options) {
  if (options.target.empty()) return std::make_shared<LocalMaster>(local_worker(), LocalMasterOptions{});
  if (!options.target.starts_with(kScheme)) {
    throw not_found("session target \"", options.target, "\": expected \"grpc://host:port\", or \"\" for this process");
  }
  const std::string address = options.target.substr(kScheme.size());
  return std::make_shared<RemoteMaster>(
      std::make_shared<RpcChannel>(address, "",
                                   ChannelOptions{.credentials = options.credentials,
                                                  .connect_timeout = options.connect_timeout,
                                                  .attempts = options.attempts,
                                                  .faults = options.faults}));
}

SessionConfig config_of(const SessionOptions& options) {
  return {.container = options.container,
          .isolated = options.isolated,
          .device_filters = options.device_filters,
          .soft_placement = options.soft_placement,
          .log_device_placement = options.log_device_placement};
}

}  // namespace

Initializer make_initializer(const std::vector<Variable>& variables) {
  VariableProgram made = initializing(variables);
  return {std::move(made.program), std::move(made.arguments)};
}

Session::Session(SessionOptions options) : Session(connect(options), options) {}

Session::Session(std::shared_ptr<Master> master, SessionOptions options)
    : options_(std::move(options)), master_(std::move(master)), id_(master_->create_session(config_of(options_))) {}

Session::~Session() {
  try {
    close();
  } catch (const Error& error) {
    MUSTER_LOG(warning) << "session " << id_ << " at " << options_.target << " was not closed: " << error.what();
  }
}

RunOptions Session::with_defaults(RunOptions options) const {
  if (!options.timeout) options.timeout = options_.run_timeout;
  return options;
}

std::vector<at::Tensor> Session::run_traced(const std::shared_ptr<TracedFunction::Entry>& entry,
                                            std::vector<at::Tensor> tensors, const RunOptions& options) {
  ProgramHandle handle;
  {
    absl::MutexLock lock(&mu_);
    if (is_closed_) throw cancelled("session ", id_, " is closed");
    if (auto it = programs_.find(entry); it != programs_.end()) handle = it->second;
  }
  if (handle.id == 0) {
    handle = master_->extend(id_, entry->traced.program);
    bool known = false;
    {
      absl::MutexLock lock(&mu_);
      auto [it, is_new] = programs_.try_emplace(entry, handle);
      known = !is_new;
      if (known) std::swap(handle, it->second);  // another thread was faster: one of the two is enough
    }
    if (known) master_->release(id_, handle);
    absl::MutexLock lock(&mu_);
    handle = programs_.at(entry);
  }
  begin_at_their_memory(tensors);
  return master_->run(id_, handle, std::move(tensors), with_defaults(options));
}

void Session::run(const Initializer& initializer) {
  const ProgramHandle handle = master_->extend(id_, initializer.program);
  master_->run(id_, handle, initializer.values, with_defaults({}));
  master_->release(id_, handle);
}

at::Tensor Session::value(const Variable& variable) {
  const Program program = reading(*variable.state()).program;
  const ProgramHandle handle = master_->extend(id_, program);
  std::vector<at::Tensor> outputs = master_->run(id_, handle, {}, with_defaults({}));
  master_->release(id_, handle);
  return outputs.at(0);
}

std::vector<std::string> Session::list_devices() {
  const ClusterDevices devices = master_->list_devices();
  for (const Status& status : devices.unreachable) {
    MUSTER_LOG(warning) << "list_devices: " << status.task() << " is left out: " << status.message();
  }
  return devices.devices;
}

void Session::close() {
  {
    absl::MutexLock lock(&mu_);
    if (is_closed_) return;
    is_closed_ = true;
    programs_.clear();
  }
  try {
    master_->close_session(id_);
  } catch (const Error& error) {
    // A master that was restarted or reset has no session to close.
    if (error.code() != StatusCode::kAborted && error.code() != StatusCode::kUnavailable) throw;
  }
}

void Session::reset(const SessionOptions& target, const std::vector<std::string>& containers) {
  connect(target)->reset(containers);
}

}  // namespace muster
