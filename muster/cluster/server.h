// A task of a cluster.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "muster/cluster/cluster_spec.h"
#include "muster/cluster/resolvers/cluster_resolver.h"
#include "muster/rpc/credentials/credentials.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {

class ClusterPeers;
class LocalMaster;
class Master;
class RpcServer;

struct ServerOptions {
  ClusterSpec cluster;
  TaskId task;
  std::string address{};  // to listen on; else the task's own in `cluster`. Port 0 picks one.
  Credentials credentials{};
  bool insecure = false;        // listen beyond loopback without credentials
  LocalWorkerOptions worker{};  // without `storage` nobody writes or reads checkpoints here: a caller names their path
  std::chrono::milliseconds connect_timeout{60'000};  // until a task that does not answer is given up
  int64_t max_message_bytes = int64_t{4} << 30;
  int max_calls_per_connection = 1024;  // under way at the same time
  // Bytes that all calls take at the same time, what they bring and what they are answered; more of them wait.
  int64_t max_bytes_under_way = int64_t{1} << 30;
  size_t max_sessions = 10'000;  // open at the same time
  // A client, or another task, that was not heard of for so long is gone. What it has left here goes: its sessions and
  // programs, sequences of examples, values for parts of steps, the variables of its strategy. They tell each other.
  std::chrono::milliseconds lease = kUsualLease;
  int attempts = 2;  // to make a call to another task that was cut off
  // How long join() goes on after the first signal, as long as somebody has something here: where all processes of a
  // job are told to end at the same time, whoever trains can still save then.
  std::chrono::milliseconds linger{0};
};

// Of the task that the resolver says this process is. Throws Error{kInvalidArgument} if it does not.
ServerOptions server_options(const ClusterResolver& resolver);

// Has a master service and a worker service, and answers gRPC health checks. It needs no code of the user's: programs
// arrive as data. Constructed means listening; destroyed means stopped, with its port free again.
class Server {
 public:
  // Throws Error{kInvalidArgument} for a task that is not in the cluster and an address without a port,
  // Error{kAlreadyExists} if the port is taken, Error{kFailedPrecondition} beyond loopback without credentials.
  explicit Server(ServerOptions options);
  // The task that the resolver says this process is, on the loopback device or a network that needs no credentials.
  explicit Server(const ClusterResolver& resolver);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  std::string target() const;  // "grpc://host:port"
  const std::string& address() const;
  const std::string& task() const { return task_; }

  // Waits for stop(), or for SIGTERM or SIGINT and what ServerOptions::linger says, and ends what is under way. Returns
  // 0, for main(); 1 if a GPU is lost, so that whoever supervises the process starts it anew.
  int join();
  // Lets join() return. From any thread.
  void stop();

  // The cluster has changed: tasks came, went or moved.
  void update_cluster(const ClusterSpec& cluster);

  LocalWorker& worker() { return *worker_; }
  Peers& peers();  // the other tasks
  std::shared_ptr<Master> master();

 private:
  // Whether somebody has variables, programs, sequences or a session here.
  bool is_used() const;
  void linger() const;

  const std::string task_;
  const std::chrono::milliseconds linger_;
  const std::unique_ptr<ClusterPeers> peers_;
  const std::unique_ptr<LocalWorker> worker_;
  const std::shared_ptr<LocalMaster> master_;
  std::unique_ptr<RpcServer> rpc_;
  int stop_pipe_[2] = {-1, -1};
};

}  // namespace muster
