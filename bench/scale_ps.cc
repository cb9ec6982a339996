// How training with parameter servers grows with workers and servers: the net of `ps_mlp`, a step per closure.
#include <thread>

#include "bench/ps_training.h"
#include "bench/workloads.h"

namespace muster::bench {

void scale_ps(const Part& part, Bench& bench) {
  constexpr int kStepsPerWorker = 500;
  ::setenv("MUSTER_GPUS", "off", /*overwrite=*/0);  // of the workers, which it is to be compared by
  const int ps = part.name[0] - '0';                // "2ps"
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  for (int workers : {1, 2, 4, 8, 12}) {
    if (workers > 1 && workers + ps > cores) break;  // they would wait for each other's cores
    PsTraining job(workers, ps);
    job.train(100 * workers, 1);
    const int steps = kStepsPerWorker * workers;
    bench.rate({str_cat("async_", workers, "workers_", ps, "ps"), "samples/s"}, steps * kBatch,
               [&] { job.train(steps, 1); });
    std::fprintf(stderr, "%s\n", job.coordinator().report().to_string().c_str());
  }
}

}  // namespace muster::bench
