// The multilayer perceptron that `ps_mlp` and `scale_ps` train on parameter servers.
#pragma once

#include <functional>
#include <vector>

#include "bench/models.h"
#include "bench/server_processes.h"
#include "muster/distribute/coordinator/cluster_coordinator.h"
#include "muster/train/optimizers.h"

namespace muster::bench {

// A job of its own: worker and parameter server processes, the net, and batches at every worker.
class PsTraining {
 public:
  PsTraining(int workers, int ps);

  // Asynchronously, on whichever workers are free, and waits for them. A closure has 1 or 10 steps.
  void train(int steps, int steps_per_closure);
  double mean_loss();
  ClusterCoordinator& coordinator() { return coordinator_; }

 private:
  using Step = std::function<void(Iterator&)>;

  torch::Tensor loss_of(const torch::Tensor& x, const torch::Tensor& y) const;

  ServerProcesses servers_;
  ParameterServerStrategy strategy_;
  std::vector<Variable> variables_;  // as the peers have them: inputs by outputs
  Sgd sgd_;
  ClusterCoordinator coordinator_;
  Pool pool_;
  PerWorkerDataset batches_;
  Function<Step> one_step_, many_steps_;
};

}  // namespace muster::bench
