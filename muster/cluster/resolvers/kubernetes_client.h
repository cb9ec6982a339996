// Asks a Kubernetes API server for pods. For KubernetesClusterResolver.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "muster/cluster/resolvers/kubernetes_config.h"

namespace muster {

struct KubernetesClientOptions {
  std::chrono::milliseconds deadline{60'000};                        // for a whole list, retries and waits included
  std::chrono::milliseconds request_timeout{10'000};                 // for the server to go on with one answer
  int page_size = 500;                                               // pods in one answer
  std::chrono::milliseconds first_delay{100}, longest_delay{5'000};  // before a retry; doubled after each
};

struct Pod {
  std::string name;
  std::string phase;  // "Pending", "Running", "Succeeded", "Failed", "Unknown"
  std::string ip;     // empty before it has one
};

// Speaks https only, and only to a server whose certificate is signed by the config's authority for the host it is
// reached at. What may pass (no connection, 429, 5xx, an answer that breaks off) is tried again until the deadline.
// Thread-safe; each list has a connection of its own.
class KubernetesClient {
 public:
  struct Clock {
    std::function<std::chrono::steady_clock::time_point()> now;
    std::function<void(std::chrono::milliseconds)> wait;
    static Clock steady();
  };

  // Throws Error{kInvalidArgument} for a config that cannot be used.
  explicit KubernetesClient(KubernetesConfig config, KubernetesClientOptions options = {},
                            Clock clock = Clock::steady());

  // All pods of the config's namespace that the label selector ("job-name=tensorflow,tier in (a,b)") selects, in the
  // server's order. Throws Error: kUnauthenticated when the server refuses us or shows a wrong certificate,
  // kPermissionDenied, kInvalidArgument for a selector it does not understand, kUnavailable after the deadline,
  // kDataLoss for an answer that is no list of pods.
  // Limit: looking up the server's host name is not bound by the deadline.
  std::vector<Pod> pods(const std::string& label_selector) const;

  // "Kubernetes API server https://10.96.0.1:443", for messages.
  const std::string& name() const { return name_; }

 private:
  class Listing;

  const KubernetesConfig config_;
  const KubernetesClientOptions options_;
  const Clock clock_;
  std::string name_, host_, path_prefix_;
  int port_ = 443;
};

}  // namespace muster
