#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "muster/cluster/resolvers/cluster_resolver.h"

namespace muster {

// Several clusters as one. A job that is in more than one of them has the tasks of all: lists one after the other;
// where one is sparse, each task under its own index. This process is what the first resolver says.
class UnionClusterResolver : public ClusterResolver {
 public:
  // REQUIRES: at least one resolver, none of them null.
  explicit UnionClusterResolver(std::vector<std::unique_ptr<ClusterResolver>> resolvers);

  // Throws Error{kInvalidArgument} when two sparse jobs have the same task.
  ClusterSpec cluster_spec() const override;

 private:
  std::string find_master(const MasterQuery& query) const override;
  std::map<std::string, int> count_accelerators(const std::optional<std::string>& task_type,
                                                std::optional<int> task_index) const override;

  const std::vector<std::unique_ptr<ClusterResolver>> resolvers_;
};

}  // namespace muster
