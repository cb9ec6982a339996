#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/cluster/cluster_spec.h"
#include "muster/cluster/task_id.h"

namespace muster {

// Names the devices that the task at `master` knows of, its own and others':
// "/job:worker/replica:0/task:0/device:GPU:1".
using DeviceLister = std::function<std::vector<std::string>(const std::string& master)>;

// What a resolver says of the process that asks; each part may be unknown.
struct ResolverTask {
  std::optional<std::string> task_type{};
  std::optional<int> task_index{};
  std::string rpc_layer{};    // "grpc" makes "grpc://worker0:2222" of an address; empty leaves it as it is
  std::string environment{};  // "cloud", or any word of the user's
  DeviceLister devices{};     // without one no accelerators are known
};

// Finds the tasks of a cluster and says which of them this process is.
// Thread-safe but for the setters, which are for before it is shared.
class ClusterResolver {
 public:
  virtual ~ClusterResolver() = default;

  // As of now: it may ask others, wait for them, and throw an Error.
  virtual ClusterSpec cluster_spec() const = 0;

  // This process; nothing when nobody said.
  const std::optional<std::string>& task_type() const { return own_.task_type; }
  std::optional<int> task_index() const { return own_.task_index; }
  std::optional<TaskId> task() const;
  const std::string& rpc_layer() const { return own_.rpc_layer; }
  const std::string& environment() const { return own_.environment; }

  void set_task_type(std::string task_type) { own_.task_type = std::move(task_type); }
  void set_task_index(int task_index) { own_.task_index = task_index; }
  void set_rpc_layer(std::string rpc_layer) { own_.rpc_layer = std::move(rpc_layer); }

  // Where a session connects to: the address of that task, what is left open being this process's own. Empty, for "in
  // this process", when no task is known. Throws Error{kInvalidArgument} for a task that is not in the cluster.
  std::string master(const std::optional<std::string>& task_type = {}, std::optional<int> task_index = {},
                     const std::optional<std::string>& rpc_layer = {}) const;

  // How many accelerators of each type a task has: {{"GPU", 8}}. What is left open is this process's own, or where
  // that is unknown too, any task counts.
  std::map<std::string, int> num_accelerators(const std::optional<std::string>& task_type = {},
                                              std::optional<int> task_index = {}) const;

 protected:
  // A question with what the caller left open; `rpc_layer` is filled in.
  struct MasterQuery {
    std::optional<std::string> task_type;
    std::optional<int> task_index;
    std::string rpc_layer;
  };

  explicit ClusterResolver(ResolverTask own) : own_(std::move(own)) {}
  ClusterResolver(const ClusterResolver&) = default;
  ClusterResolver& operator=(const ClusterResolver&) = default;

  // An address that has a layer keeps it.
  static std::string with_layer(const std::string& rpc_layer, const std::string& address);

  // What master() and num_accelerators() answer where a kind of resolver does not know better.
  virtual std::string find_master(const MasterQuery& query) const;
  virtual std::map<std::string, int> count_accelerators(const std::optional<std::string>& task_type,
                                                        std::optional<int> task_index) const;

 private:
  ResolverTask own_;
};

}  // namespace muster
