#include "muster/distribute/distributed_dataset.h"

#include <algorithm>

#include "muster/base/status.h"
#include "muster/runtime/tensors.h"

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
    if (replicas > 1 && element[i].dim() == 0) {
      throw invalid_argument("a batch for ", replicas, " replicas is ", spec_of(element[i]).to_string(),
                             ", which has no rows to deal out; add batch(n)");
    }
    if (replicas == 1) {
      result[i].values.push_back(element[i]);
      continue;
    }
    const int64_t rows = element[i].size(0), share = (rows + replicas - 1) / replicas;
    for (int64_t replica = 0; replica < replicas; ++replica) {
      const int64_t first = std::min(replica * share, rows);
      result[i].values.push_back(element[i].narrow(0, first, std::min(share, rows - first)));
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
