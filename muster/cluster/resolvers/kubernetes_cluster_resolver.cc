#include "muster/cluster/resolvers/kubernetes_cluster_resolver.h"

#include <algorithm>
#include <utility>

#include "muster/base/status.h"

namespace muster {
namespace {

KubernetesConfig config_of(const KubernetesClusterResolverOptions& options) {
  KubernetesConfig config = options.config ? *options.config : KubernetesConfig::automatic();
  if (options.pod_namespace) config.pod_namespace = *options.pod_namespace;
  return config;
}

}  // namespace

KubernetesClusterResolver::KubernetesClusterResolver(KubernetesClusterResolverOptions options)
    : ClusterResolver({.task_type = options.task_type,
                       .task_index = options.task_index,
                       .rpc_layer = options.rpc_layer,
                       .environment = options.environment,
                       .devices = options.devices}),
      selectors_(options.selectors),
      port_(options.port),
      client_(config_of(options), options.client) {}

ClusterSpec KubernetesClusterResolver::cluster_spec() const {
  std::map<std::string, std::vector<std::string>> jobs;
  for (const auto& [job, selectors] : selectors_) {
    std::vector<std::string>& addresses = jobs[job];
    for (const std::string& selector : selectors) {
      std::vector<Pod> pods = client_.pods(selector);
      std::sort(pods.begin(), pods.end(), [](const Pod& a, const Pod& b) { return a.name < b.name; });
      for (const Pod& pod : pods) addresses.push_back(address_of(pod));
    }
  }
  return ClusterSpec(jobs);
}

std::string KubernetesClusterResolver::address_of(const Pod& pod) const {
  if (pod.phase != "Running") {
    const StatusCode code = pod.phase == "Pending" ? StatusCode::kUnavailable : StatusCode::kFailedPrecondition;
    throw Error(Status(code, str_cat("Pod \"", pod.name, "\" is not running; phase: \"", pod.phase, "\"")));
  }
  if (pod.ip.empty()) throw unavailable("Pod \"", pod.name, "\" has no address yet");
  const bool is_ipv6 = pod.ip.find(':') != std::string::npos;
  return is_ipv6 ? str_cat("[", pod.ip, "]:", port_) : str_cat(pod.ip, ":", port_);
}

}  // namespace muster
