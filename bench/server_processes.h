// Servers as processes of their own, for workloads that need a cluster.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "muster/cluster/cluster_spec.h"

namespace muster::bench {

// `muster server` processes on free ports of this machine, one thread each. They are killed by the destructor, and by
// the kernel if this process dies.
class ServerProcesses {
 public:
  // Does not wait until they listen. `start`: now; else each of them by start(). `words` are more of `muster server`.
  ServerProcesses(int workers, int ps, bool start = true, std::vector<std::string> words = {});
  ~ServerProcesses();
  ServerProcesses(const ServerProcesses&) = delete;
  ServerProcesses& operator=(const ServerProcesses&) = delete;

  const ClusterSpec& spec() const { return spec_; }
  std::string target(const TaskId& task) const { return "grpc://" + spec_.task_address(task); }
  pid_t pid(const TaskId& task) const;
  // As kill -9 does, and waits for its end.
  void kill(const TaskId& task);
  // At its address. REQUIRES: it does not run.
  void start(const TaskId& task);

 private:
  const std::vector<std::string> words_;
  ClusterSpec spec_;
  std::map<TaskId, pid_t> processes_;
};

// Starts this program again with other words. Ends with this process.
pid_t start_self(const std::vector<std::string>& words);
// Throws Error{kInternal} unless it ends well.
void wait_for(pid_t process);
// The memory that a process has now, in MiB.
double resident_memory(pid_t process);
// The processor time that all its threads have had.
double cpu_seconds(pid_t process);
// What the loopback device has received so far.
double loopback_bytes();

}  // namespace muster::bench
