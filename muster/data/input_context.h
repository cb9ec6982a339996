// What a function that makes the input of one pipeline is told about the others.
#pragma once

#include "muster/base/status.h"

namespace muster {

// Which of several input pipelines this one is. A value.
struct InputContext {
  int num_input_pipelines = 1;
  int input_pipeline_id = 0;     // from 0
  int num_replicas_in_sync = 1;  // over all pipelines

  // Throws Error{kInvalidArgument} if the replicas cannot share the batch evenly.
  int per_replica_batch_size(int global) const {
    if (global < 1 || num_replicas_in_sync < 1 || global % num_replicas_in_sync != 0) {
      throw invalid_argument("per_replica_batch_size: a global batch of ", global, " for ", num_replicas_in_sync,
                             " replicas; expected a positive multiple of the replicas");
    }
    return global / num_replicas_in_sync;
  }

  bool operator==(const InputContext&) const = default;
};

}  // namespace muster
