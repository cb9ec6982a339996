#include "muster/distribute/distributed_dataset.h"

#include "muster/base/status.h"

namespace muster {

Iterator DistributedDataset::iterator() const {
  if (begin) return begin();
  throw invalid_argument(
      "a dataset that is dealt out to replicas of ParameterServerStrategy can be iterated at workers only: give it to "
      "ClusterCoordinator::create_per_worker_dataset");
}

}  // namespace muster
