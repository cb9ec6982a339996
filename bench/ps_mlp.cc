// A multilayer perceptron trained asynchronously by 2 worker processes with its variables on 1 parameter server
// process.
#include <torch/torch.h>

#include "bench/ps_training.h"
#include "bench/workloads.h"

namespace muster::bench {

void ps_mlp(const Part&, Bench& bench) {
  constexpr int kSteps = 600;
  PsTraining job(2, 1);
  const double first = job.mean_loss();
  for (int per_closure : {1, 10}) {
    job.train(20 * per_closure, per_closure);
    bench.rate({str_cat("async_2workers_", per_closure, "steps_per_closure"), "samples/s"}, kSteps * kBatch,
               [&] { job.train(kSteps, per_closure); });
    if (torch::cuda::is_available()) std::fprintf(stderr, "%s\n", job.coordinator().report().to_string().c_str());
  }
  check_fell("ps_mlp", first, job.mean_loss());
}

}  // namespace muster::bench
