#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <map>
#include <memory>
#include <string>

#include "muster/cluster/cluster_spec.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/runtime/worker/worker.h"

namespace muster {

// The workers of a cluster, each reached over a connection that is made when it is first needed. Thread-safe.
class ClusterPeers : public Peers {
 public:
  ClusterPeers(const ClusterSpec& cluster, ChannelOptions options);

  std::shared_ptr<Worker> worker(const std::string& task) override ABSL_LOCKS_EXCLUDED(mu_);
  // Tasks whose address is the same keep their connection.
  void update(const ClusterSpec& cluster) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<std::string> tasks() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Peer {
    std::string address;
    std::shared_ptr<Worker> worker{};
  };

  const ChannelOptions options_;

  mutable absl::Mutex mu_;
  std::map<std::string, Peer> peers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
