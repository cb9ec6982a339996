#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "muster/cluster/resolvers/cluster_resolver.h"
#include "muster/cluster/resolvers/kubernetes_client.h"
#include "muster/cluster/resolvers/kubernetes_config.h"

namespace muster {

struct KubernetesClusterResolverOptions {
  // The pods of each job, by label selectors. A job's tasks are the pods of its first selector, sorted by name, then
  // those of the second, and so on.
  std::map<std::string, std::vector<std::string>> selectors{{"worker", {"job-name=tensorflow"}}};

  int port = 8470;                             // where the tasks in the pods listen
  std::optional<KubernetesConfig> config{};    // KubernetesConfig::automatic()
  std::optional<std::string> pod_namespace{};  // instead of the config's
  std::optional<std::string> task_type{};
  std::optional<int> task_index{};
  std::string rpc_layer = "grpc";
  std::string environment{};
  DeviceLister devices{};
  KubernetesClientOptions client{};
};

// The pods of a Kubernetes cluster that have certain labels. Every question asks the API server anew.
class KubernetesClusterResolver : public ClusterResolver {
 public:
  // Throws as KubernetesConfig does. Asks nobody yet.
  explicit KubernetesClusterResolver(KubernetesClusterResolverOptions options = {});

  // Throws Error: what KubernetesClient::pods() throws; kUnavailable for a pod that is not running yet; and
  // kFailedPrecondition for one that no longer is: `Pod "tensorflow-abc123" is not running; phase: "Failed"`.
  ClusterSpec cluster_spec() const override;

 private:
  std::string address_of(const Pod& pod) const;

  const std::map<std::string, std::vector<std::string>> selectors_;
  const int port_;
  const KubernetesClient client_;
};

}  // namespace muster
