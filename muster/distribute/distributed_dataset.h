// Datasets for the replicas of a worker.
#pragma once

#include <array>
#include <vector>

#include "muster/data/dataset.h"
#include "muster/distribute/per_worker.h"
#include "muster/distribute/replicas.h"

namespace muster {

// A sequence whose elements are for all replicas of a worker, as an argument of a traced function.
struct DistributedIterator {
  Iterator iterator{};
  int64_t replicas = 1;
  bool global_batches = true;

  // What each replica gets: its rows of the next element, which is a batch for all of them, or an element of its own.
  // The rows are dealt out as evenly as they go; the last replicas may get fewer, or none.
  template <size_t N = 2>
  std::array<PerReplica<at::Tensor>, N> next() {
    std::vector<PerReplica<at::Tensor>> element = next_tensors(N);
    std::array<PerReplica<at::Tensor>, N> tensors;
    for (size_t i = 0; i < N; ++i) tensors[i] = std::move(element[i]);
    return tensors;
  }
  std::vector<PerReplica<at::Tensor>> next_tensors(size_t count);
};

// A dataset that a strategy deals out to the replicas of a worker: for ClusterCoordinator::create_per_worker_dataset.
struct DistributedDataset {
  Dataset dataset;
  int64_t replicas = 1;
  bool global_batches = true;

  // Throws Error{kInvalidArgument}: it can be iterated at workers only.
  DistributedIterator iterator() const;
};

// As an argument of schedule() it stands for one DistributedIterator over it, the same in all calls. A handle, cheap to
// copy.
class PerWorkerDistributedDataset {
 public:
  PerWorkerDistributedDataset(PerWorkerDataset dataset, int64_t replicas, bool global_batches)
      : dataset_(std::move(dataset)), iterator_{dataset_.shared_iterator().iterator(), replicas, global_batches} {}

  const PerWorkerDataset& dataset() const { return dataset_; }
  const DistributedIterator& iterator() const { return iterator_; }

 private:
  PerWorkerDataset dataset_;
  DistributedIterator iterator_;
};

}  // namespace muster
