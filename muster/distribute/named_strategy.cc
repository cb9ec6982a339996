#include "muster/distribute/named_strategy.h"

#include <optional>

#include "muster/base/status.h"
#include "muster/cluster/resolvers/tf_config_cluster_resolver.h"
#include "muster/distribute/local_strategies.h"
#include "muster/distribute/multi_worker_mirrored_strategy.h"
#include "muster/distribute/servers/parameter_server_strategy.h"

namespace muster {

Strategy strategy_named(const std::string& name, const NamedStrategyOptions& options) {
  if (name == "none") return {};
  if (name == "one_device") {
    return OneDeviceStrategy(options.devices.empty() ? "/device:CPU:0" : options.devices.front());
  }
  if (name == "mirrored") return MirroredStrategy(options.devices);
  if (name == "central_storage") return CentralStorageStrategy(options.devices);
  if (name != "multi_worker" && name != "parameter_server") {
    throw invalid_argument("strategy \"", name,
                           "\": expected none, one_device, mirrored, central_storage, multi_worker or "
                           "parameter_server");
  }
  std::optional<TfConfigResolver> of_environment;
  const ClusterResolver& cluster = options.cluster != nullptr ? *options.cluster : of_environment.emplace();
  if (name == "multi_worker") return MultiWorkerMirroredStrategy(cluster, {.devices = options.devices});
  return ParameterServerStrategy(cluster);
}

}  // namespace muster
