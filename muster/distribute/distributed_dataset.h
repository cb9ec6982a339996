// Datasets for the replicas of a strategy.
#pragma once

#include <functional>

#include "muster/data/dataset.h"
#include "muster/trace/iterator.h"

namespace muster {

// A dataset that a strategy deals out to its replicas, wherever they are: begun here by iterator(), where the strategy
// takes its steps here, or at workers by ClusterCoordinator::create_per_worker_dataset.
struct DistributedDataset {
  Dataset dataset;
  SharedBy shared_by = SharedBy::kNobody;  // each element
  std::function<Iterator()> begin{};       // here; null: workers only

  // For Strategy::run. Each begins at the beginning. Throws Error{kInvalidArgument} if it is for workers only.
  Iterator iterator() const;
};

}  // namespace muster
