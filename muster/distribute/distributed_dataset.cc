#include "muster/distribute/distributed_dataset.h"

#include "muster/base/status.h"

namespace muster {

std::vector<PerReplica<at::Tensor>> DistributedIterator::next_tensors(size_t count) {
  std::vector<PerReplica<at::Tensor>> result(count);
  if (!global_batches) {
    for (int64_t replica = 0; replica < replicas; ++replica) {
      std::vector<at::Tensor> element = iterator.next_tensors(count);
      for (size_t i = 0; i < count; ++i) result[i].values.push_back(std::move(element[i]));
    }
    return result;
  }
  const std::vector<at::Tensor> element = iterator.next_tensors(count);
  for (size_t i = 0; i < count; ++i) {
    for (int64_t replica = 0; replica < replicas; ++replica) {
      result[i].values.push_back(rows_of_replica(element[i], replica, replicas));
    }
  }
  return result;
}

DistributedIterator DistributedDataset::iterator() const {
  throw invalid_argument(
      "a dataset that is dealt out to replicas can be iterated at workers only: give it to "
      "ClusterCoordinator::create_per_worker_dataset");
}

}  // namespace muster
