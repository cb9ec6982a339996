#pragma once

#include <optional>
#include <string>

namespace muster {

// How to reach the API server of a Kubernetes cluster, and as whom. A value.
struct KubernetesConfig {
  static constexpr const char* kServiceAccountDirectory = "/var/run/secrets/kubernetes.io/serviceaccount";

  std::string server;             // "https://10.96.0.1:443"; only https, since what is sent there is a secret
  std::string ca_certificates{};  // PEM of who may sign the server's certificate; empty: the system's authorities
  std::string token{};
  std::string token_file{};  // instead of `token`; read for every list, since Kubernetes changes it every hour
  std::string client_certificate{}, client_key{};  // PEM, or empty
  std::string pod_namespace = "default";           // where to look for pods

  // For a program in a pod: its service account, and KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT. Throws
  // Error{kFailedPrecondition} elsewhere.
  static KubernetesConfig in_cluster(const std::string& directory = kServiceAccountDirectory);

  // For a program outside: a file as kubectl reads it. No context: the file's own. Throws Error{kNotFound} without the
  // file and Error{kInvalidArgument} that names the wrong key.
  // Limit: credentials that a plugin makes (exec, auth-provider) are refused; give a token or a client certificate.
  static KubernetesConfig from_kubeconfig(const std::string& path, const std::optional<std::string>& context = {});

  // The first that is there: the pod's service account, the (first) file that KUBECONFIG names, ~/.kube/config.
  static KubernetesConfig automatic();
};

}  // namespace muster
