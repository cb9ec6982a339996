#include "muster/session/session.h"

#include <algorithm>
#include <atomic>

#include "muster/base/log.h"
#include "muster/rpc/remote_master.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/lease_holder.h"
#include "muster/runtime/worker/master.h"
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
  if (const size_t colon = address.rfind(':');
      colon == std::string::npos || address.find(']', colon) != std::string::npos) {
    throw invalid_argument("session target \"", options.target, "\" has no port: expected \"grpc://host:port\"");
  }
  return std::make_shared<RemoteMaster>(
      std::make_shared<RpcChannel>(address, "",
                                   ChannelOptions{.credentials = options.credentials,
                                                  .connect_timeout = options.connect_timeout,
                                                  .attempts = options.attempts}));
}

Error closed(const std::string& id) { return cancelled("session ", id, " is closed"); }

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

// Tells the master again and again that this client is there.
class Session::Renewal {
 public:
  Renewal(std::shared_ptr<Master> master, std::string id) : keeper_(LeaseKeeper::shared()) {
    auto state = std::make_shared<State>(std::move(master), std::move(id));
    number_ = keeper_->add([state] {
      state->master->renew(state->id, [state](const Status& status, const LeaseTerms& terms) {
        if (status.ok()) state->next = renewal_after(terms.length);
      });
      // Until the master has said how long it waits, soon again.
      constexpr std::chrono::milliseconds kSoon(5);
      const std::chrono::milliseconds next = state->next;
      return next > std::chrono::milliseconds(0) ? next : kSoon;
    });
  }
  ~Renewal() { keeper_->remove(number_); }
  Renewal(const Renewal&) = delete;
  Renewal& operator=(const Renewal&) = delete;

 private:
  struct State {
    State(std::shared_ptr<Master> m, std::string i) : master(std::move(m)), id(std::move(i)) {}
    const std::shared_ptr<Master> master;
    const std::string id;
    std::atomic<std::chrono::milliseconds> next{};
  };
  const std::shared_ptr<LeaseKeeper> keeper_;
  uint64_t number_ = 0;
};

Session::Session(SessionOptions options) : Session(connect(options), options) {
  if (options_.target.empty()) return;  // a master of this process lives no longer than this client
  absl::MutexLock lock(&mu_);
  renewal_ = std::make_unique<Renewal>(master_, id_);
}

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
  std::shared_ptr<Ready> ready;
  {
    absl::MutexLock lock(&mu_);
    if (is_closed_) throw closed(id_);
    if (auto it = programs_.find(entry); it != programs_.end()) ready = it->second;
    if (ready) ready->used = ++runs_;
  }
  if (!ready) {
    refuse_variables_of_strategies(entry->traced, "run by a session");
    if (!options_.target.empty()) entry->warn_of_lost_writes();
    release_unused();
    auto made = std::make_shared<Ready>(Ready{master_->extend(id_, entry->traced.program)});
    {
      absl::MutexLock lock(&mu_);
      ready = programs_.try_emplace(entry, made).first->second;
      ready->used = ++runs_;
    }
    // Another thread was faster, and may be running its own already.
    if (ready != made) master_->release(id_, made->handle);
  }
  begin_at_their_memory(tensors);
  return run_program(ready->handle, std::move(tensors), with_defaults(options));
}

void Session::refuse_if_closed() {
  absl::MutexLock lock(&mu_);
  if (is_closed_) throw closed(id_);
}

std::vector<at::Tensor> Session::run_program(ProgramHandle handle, std::vector<at::Tensor> tensors,
                                             const RunOptions& options) {
  try {
    std::vector<at::Tensor> outputs = master_->run(id_, handle, std::move(tensors), options);
    for (at::Tensor& output : outputs) bring_to(at::kCPU, output);
    return outputs;
  } catch (const Error& error) {
    if (error.code() == StatusCode::kAborted) refuse_if_closed();  // the master does not know it any more
    throw;
  }
}

void Session::release_unused() {
  std::vector<ProgramHandle> unused;
  {
    absl::MutexLock lock(&mu_);
    if (programs_.size() < look_again_at_) return;
    absl::erase_if(programs_, [&](const auto& program) {
      if (program.first.use_count() > 1) return false;
      unused.push_back(program.second->handle);
      return true;
    });
    if (programs_.size() >= options_.max_programs) {
      std::vector<uint64_t> times;
      for (const auto& [entry, ready] : programs_) times.push_back(ready->used);
      const auto latest = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4);  // that give way
      std::nth_element(times.begin(), latest, times.end());
      absl::erase_if(programs_, [&](const auto& program) {
        if (program.second->used > *latest || program.second.use_count() > 1) return false;
        unused.push_back(program.second->handle);
        return true;
      });
    }
    constexpr size_t kFew = 16;
    look_again_at_ = std::min(std::max(kFew, 2 * programs_.size()), options_.max_programs);
  }
  for (ProgramHandle handle : unused) {
    try {
      master_->release(id_, handle);
    } catch (const Error&) {
      // A reset has dropped it, or the master is gone: whoever runs something next is told.
    }
  }
}

std::vector<at::Tensor> Session::run_once(const Program& program, std::vector<at::Tensor> arguments) {
  refuse_if_closed();
  const ProgramHandle handle = master_->extend(id_, program);
  std::vector<at::Tensor> outputs;
  try {
    outputs = run_program(handle, std::move(arguments), with_defaults({}));
  } catch (...) {
    try {
      master_->release(id_, handle);
    } catch (const Error&) {
      // The first error is the one that counts.
    }
    throw;
  }
  master_->release(id_, handle);
  return outputs;
}

void Session::run(const Initializer& initializer) { run_once(initializer.program, initializer.values); }

at::Tensor Session::value(const Variable& variable) { return run_once(reading(*variable.state()).program, {}).at(0); }

std::vector<std::string> Session::list_devices() {
  refuse_if_closed();
  const ClusterDevices devices = master_->list_devices();
  for (const Status& status : devices.unreachable) {
    MUSTER_LOG(warning) << "list_devices: " << status.task() << " is left out: " << status.message();
  }
  return devices.devices;
}

void Session::close() {
  std::unique_ptr<Renewal> last;  // ends without the lock
  {
    absl::MutexLock lock(&mu_);
    if (is_closed_) return;
    is_closed_ = true;
    programs_.clear();
    last = std::move(renewal_);
  }
  last.reset();
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
