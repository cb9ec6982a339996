#pragma once

#include <memory>
#include <optional>
#include <string>

#include "muster/cluster/resolvers/cluster_resolver.h"

namespace muster {

struct TfConfigClusterResolverOptions {
  std::optional<std::string> text{};  // instead of the environment variable TF_CONFIG

  // What is given here wins over what the text says.
  std::optional<std::string> task_type{};
  std::optional<int> task_index{};
  std::optional<std::string> rpc_layer{};
  std::optional<std::string> environment{};
  DeviceLister devices{};
};

// Reads the cluster as TensorFlow's tools write it:
//   {"cluster": {"ps": ["ps0:2222"], "worker": ["w0:2222", "w1:2222"]}, "task": {"type": "worker", "index": 1}}
// and, if they are there, "rpc_layer", "session_master" and "environment". No TF_CONFIG is an empty cluster.
// It reads once, when it is made. A value.
class TfConfigResolver : public ClusterResolver {
 public:
  // Throws Error{kInvalidArgument} that names the wrong key: `TF_CONFIG: cluster.worker[1]: expected "host:port", got
  // 17`.
  explicit TfConfigResolver(TfConfigClusterResolverOptions options = {});

  ClusterSpec cluster_spec() const override { return cluster_; }

  // Where every session connects to, whichever task it asks for.
  const std::optional<std::string>& session_master() const { return session_master_; }

 private:
  struct Parsed;
  // By pointer: g++ 13 dies of a call with {.field = …} that might mean an incomplete type.
  explicit TfConfigResolver(std::unique_ptr<Parsed> parsed);

  // Also empty when the cluster is but one task, which is then this process.
  std::string find_master(const MasterQuery& query) const override;

  ClusterSpec cluster_;
  std::optional<std::string> session_master_;
};

// Makes one. A function and no class, so that `MultiWorkerMirroredStrategy strategy(TfConfigClusterResolver());` is a
// strategy: with a class C++ takes it for a function called `strategy`.
TfConfigResolver TfConfigClusterResolver(TfConfigClusterResolverOptions options = {});

}  // namespace muster
