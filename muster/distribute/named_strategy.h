// A strategy by its name, as a program takes it from a flag.
#pragma once

#include <string>
#include <vector>

#include "muster/cluster/resolvers/cluster_resolver.h"
#include "muster/distribute/strategy.h"

namespace muster {

struct NamedStrategyOptions {
  std::vector<std::string> devices{};        // of the replicas of this process; of one_device the first one
  const ClusterResolver* cluster = nullptr;  // of multi_worker and parameter_server; null: what TF_CONFIG describes
};

// --strategy none, one_device, mirrored, central_storage, multi_worker or parameter_server. Of the last one, a
// ClusterCoordinator is made with ParameterServerStrategy(strategy). Without devices each has those that it takes by
// itself, and one_device the first CPU. Throws Error{kInvalidArgument} for another name, and what the constructor of
// the strategy throws.
Strategy strategy_named(const std::string& name, const NamedStrategyOptions& options = {});

}  // namespace muster
