#pragma once

#include <map>
#include <optional>
#include <string>

#include "muster/cluster/resolvers/cluster_resolver.h"

namespace muster {

struct SimpleClusterResolverOptions {
  std::optional<std::string> task_type{};
  std::optional<int> task_index{};
  std::string master{};  // instead of the own task's address
  std::string rpc_layer{};
  std::string environment{};
  std::optional<std::map<std::string, int>> num_accelerators{};  // of every task
  DeviceLister devices{};                                        // asked when the counts are not given
};

// Answers what it was told. A value.
class SimpleClusterResolver : public ClusterResolver {
 public:
  explicit SimpleClusterResolver(ClusterSpec cluster, SimpleClusterResolverOptions options = {});

  ClusterSpec cluster_spec() const override { return cluster_; }

 private:
  std::string find_master(const MasterQuery& query) const override;
  std::map<std::string, int> count_accelerators(const std::optional<std::string>& task_type,
                                                std::optional<int> task_index) const override;

  ClusterSpec cluster_;
  std::string master_;
  std::optional<std::map<std::string, int>> num_accelerators_;
};

}  // namespace muster
