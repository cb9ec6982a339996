#include "muster/cluster/server.h"

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/cluster/cluster_peers.h"
#include "muster/cluster/machine_shares.h"
#include "muster/data/sources/sources.h"
#include "muster/rpc/master_service.h"
#include "muster/rpc/rpc_server.h"
#include "muster/rpc/worker_service.h"
#include "muster/runtime/worker/lost_device.h"
#include "muster/runtime/worker/master.h"
#include "muster/session/local_master.h"

namespace muster {
namespace {

// A signal handler may do little more than write a byte to a pipe; whoever joins a server reads it.
int signal_pipe[2] = {-1, -1};

void on_signal(int) {
  const int saved = errno;
  const char byte = 's';
  [[maybe_unused]] ssize_t written = ::write(signal_pipe[1], &byte, 1);
  errno = saved;
}

// SIGTERM and SIGINT go to the pipe while one of these lives. A signal is for all of them: the pipe is emptied when the
// last one goes, so that the next one waits for a signal of its own.
class SignalGuard {
 public:
  SignalGuard() ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    if (signal_pipe[0] < 0 && ::pipe2(signal_pipe, O_CLOEXEC | O_NONBLOCK) != 0) throw internal("no pipe for signals");
    if (++alive > 1) return;
    struct sigaction action {};
    action.sa_handler = on_signal;
    ::sigaction(SIGTERM, &action, &term);
    ::sigaction(SIGINT, &action, &interrupt);
  }
  ~SignalGuard() ABSL_LOCKS_EXCLUDED(mu) {
    absl::MutexLock lock(&mu);
    if (--alive > 0) return;
    ::sigaction(SIGTERM, &term, nullptr);
    ::sigaction(SIGINT, &interrupt, nullptr);
    char bytes[64];
    while (::read(signal_pipe[0], bytes, sizeof bytes) > 0) {
    }
  }
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  // What a process has one of: its signals.
  static inline absl::Mutex mu{absl::kConstInit};
  static inline int alive ABSL_GUARDED_BY(mu) = 0;
  static inline struct sigaction term ABSL_GUARDED_BY(mu) {
  }, interrupt ABSL_GUARDED_BY(mu){};
};

// In the pipe, which nobody has read yet.
int signals_so_far() {
  int bytes = 0;
  return ::ioctl(signal_pipe[0], FIONREAD, &bytes) == 0 ? bytes : 0;
}

// It may come yet, when a disk is mounted; but mostly it was misspelt.
void warn_of_missing(const std::vector<std::string>& directories, const char* what) {
  for (const std::string& directory : directories) {
    std::error_code ignored;
    if (std::filesystem::is_directory(directory, ignored)) continue;
    MUSTER_LOG(warning) << "the directory \"" << directory << "\" for " << what << " is not there";
  }
}

LocalWorkerOptions worker_options(const ServerOptions& options) {
  LocalWorkerOptions worker = options.worker;
  warn_of_missing(worker.data, "files of datasets (--data)");
  warn_of_missing(worker.storage, "checkpoints and caches (--storage)");
  worker.devices.task = options.task.to_string();
  worker.lease = options.lease;
  for (const char* job : {"chief", "worker"}) {
    if (options.cluster.contains(job)) worker.workers += static_cast<int>(options.cluster.tasks(job).size());
  }
  if (!worker.open_source) worker.open_source = opens_below({worker.data, worker.storage});
  if (!worker.cores) worker.cores = share_of_cores(options.cluster, options.task);
  if (!worker.devices.gpu_share) worker.devices.gpu_share = share_of_machine(options.cluster, options.task);
  return worker;
}

std::vector<std::string> others(const std::vector<std::string>& tasks, const std::string& own) {
  std::vector<std::string> rest;
  for (const std::string& task : tasks) {
    if (task != own) rest.push_back(task);
  }
  return rest;
}

}  // namespace

ServerOptions server_options(const ClusterResolver& resolver) {
  const std::optional<TaskId> task = resolver.task();
  if (!task) {
    throw invalid_argument(
        "Server: nobody says which task this process is; give --task_type and --task_index, or \"task\" in TF_CONFIG");
  }
  return {.cluster = resolver.cluster_spec(), .task = *task};
}

Peers& Server::peers() { return *peers_; }

Server::Server(const ClusterResolver& resolver) : Server(server_options(resolver)) {}

Server::Server(ServerOptions options)
    : task_(options.task.to_string()),
      linger_(options.linger),
      peers_(std::make_unique<ClusterPeers>(options.cluster, ChannelOptions{.credentials = options.credentials,
                                                                            .connect_timeout = options.connect_timeout,
                                                                            .attempts = options.attempts})),
      worker_(std::make_unique<LocalWorker>(worker_options(options), peers_.get())),
      master_(std::make_shared<LocalMaster>(*worker_, LocalMasterOptions{.tasks = others(peers_->tasks(), task_),
                                                                         .peers = peers_.get(),
                                                                         .max_sessions = options.max_sessions,
                                                                         .lease = options.lease})) {
  std::string address = options.address;
  if (address.empty()) address = options.cluster.task_address(options.task);
  // Calls are answered before the constructor of the RPC server has returned.
  auto listening = std::make_shared<std::atomic<RpcServer*>>(nullptr);
  auto complete = [this, listening](WorkerStatus& status) {
    status.sessions = master_->sessions();
    if (const RpcServer* rpc = listening->load()) status.requests = rpc->requests();
  };
  std::vector<RpcServer::MethodEntry> methods = worker_methods(*worker_, complete);
  for (RpcServer::MethodEntry& method : master_methods(*master_)) methods.push_back(std::move(method));
  rpc_ = std::make_unique<RpcServer>(RpcServerOptions{.address = address,
                                                      .task = task_,
                                                      .incarnation = worker_->incarnation(),
                                                      .credentials = options.credentials,
                                                      .insecure = options.insecure,
                                                      .max_message_bytes = options.max_message_bytes,
                                                      .max_calls_per_peer = options.max_calls_per_connection,
                                                      .max_bytes_under_way = options.max_bytes_under_way,
                                                      .on_thread_start = [this] { worker_->prepare_thread(); }},
                                     std::move(methods));
  listening->store(rpc_.get());
  // Last, since nobody would close it if the constructor failed.
  if (::pipe2(stop_pipe_, O_CLOEXEC) != 0) throw internal("no pipe to stop a server with");
}

Server::~Server() {
  rpc_.reset();
  for (int end : stop_pipe_) {
    if (end >= 0) ::close(end);
  }
}

std::string Server::target() const { return "grpc://" + rpc_->address(); }
const std::string& Server::address() const { return rpc_->address(); }
std::shared_ptr<Master> Server::master() { return master_; }

int Server::join() {
  SignalGuard guard;
  pollfd ends[3] = {{.fd = stop_pipe_[0], .events = POLLIN, .revents = 0},
                    {.fd = signal_pipe[0], .events = POLLIN, .revents = 0},
                    {.fd = lost_device_file(), .events = POLLIN, .revents = 0}};
  while (::poll(ends, 3, -1) < 0 && errno == EINTR) {
  }
  // Whoever has lost its GPU can do nothing more, but whoever supervises it can start it anew.
  if (ends[2].revents != 0 && ends[0].revents == 0 && ends[1].revents == 0) {
    constexpr int kLastAnswers = 200;  // milliseconds, for those whose work fails to hear why
    ::poll(ends, 2, kLastAnswers);
    MUSTER_LOG(error) << task_ << " ends, to be started anew: " << lost_device_status().message();
    return EXIT_FAILURE;
  }
  if (ends[1].revents != 0) linger();
  MUSTER_LOG(info) << task_ << " stops" << (ends[1].revents != 0 ? ", as a signal asks" : "");
  return 0;
}

bool Server::is_used() const {
  const WorkerStatus status = worker_->status();
  return status.variables + status.programs + status.sources > 0 || master_->sessions() > 0;
}

void Server::linger() const {
  constexpr int kLookAgain = 50;  // milliseconds
  const auto end = std::chrono::steady_clock::now() + linger_;
  const auto is_over = [&] { return std::chrono::steady_clock::now() >= end || !is_used(); };
  if (is_over()) return;
  const int signals = signals_so_far();
  MUSTER_LOG(info) << task_ << " is told to end, and goes on while it is used, for "
                   << std::chrono::duration<double>(linger_).count() << " s at most; another signal ends it";
  pollfd stopped{.fd = stop_pipe_[0], .events = POLLIN, .revents = 0};
  while (!is_over() && signals_so_far() == signals && !device_is_lost()) {
    if (::poll(&stopped, 1, kLookAgain) > 0) return;
  }
}

void Server::stop() {
  const char byte = 's';
  [[maybe_unused]] ssize_t written = ::write(stop_pipe_[1], &byte, 1);
}

void Server::update_cluster(const ClusterSpec& cluster) {
  peers_->update(cluster);
  master_->set_tasks(others(peers_->tasks(), task_));
}

}  // namespace muster
