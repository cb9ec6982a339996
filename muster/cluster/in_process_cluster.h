// A cluster in this process: for a first program, for tests, and for one machine.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "muster/cluster/resolvers/simple_cluster_resolver.h"
#include "muster/cluster/server.h"
#include "muster/session/session.h"

namespace muster {

enum class Transport {
  kGrpc,   // real servers on free ports of the loopback device
  kLocal,  // workers call each other: no ports, no copies; for unit tests
};

struct InProcessClusterOptions {
  int workers = 1;
  int ps = 0;
  std::map<std::string, int> jobs{};  // others, by name
  int devices_per_task = 1;           // logical CPUs
  Transport transport = Transport::kGrpc;
  LocalWorkerOptions worker{};  // its `lease` is that of the whole task
  int attempts = 2;             // to make a call that was cut off
};

// Ready when constructed. Not thread-safe but for the constant methods.
class InProcessCluster {
 public:
  explicit InProcessCluster(InProcessClusterOptions options = {});
  ~InProcessCluster();
  InProcessCluster(const InProcessCluster&) = delete;
  InProcessCluster& operator=(const InProcessCluster&) = delete;

  const ClusterSpec& spec() const { return spec_; }
  SimpleClusterResolver resolver() const { return SimpleClusterResolver(spec_, {.rpc_layer = "grpc"}); }
  // For Session; Error{kFailedPrecondition} with Transport::kLocal.
  std::string target(const TaskId& task = {"worker", 0}) const;
  // A session whose master is that task, over either transport.
  std::unique_ptr<Session> session(const TaskId& task = {"worker", 0}, SessionOptions options = {}) const;

  LocalWorker& worker(const TaskId& task);
  const std::shared_ptr<Peers>& peers() const { return peers_; }

  // Ends a task, as a crash would: what it had is gone. Error{kNotFound} if it is not up.
  void stop(const TaskId& task);
  // Starts it again, at the same address, as a new incarnation.
  void start(const TaskId& task);

 private:
  struct Task;
  class LocalPeers;

  Task& find(const TaskId& task) const;

  const InProcessClusterOptions options_;
  ClusterSpec spec_;
  std::shared_ptr<Peers> peers_;
  std::map<TaskId, std::unique_ptr<Task>> tasks_;
};

}  // namespace muster
