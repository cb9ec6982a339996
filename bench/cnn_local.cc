#include "bench/training.h"
#include "bench/workloads.h"

namespace muster::bench {

void cnn_local(const Part& part, Bench& bench) {
  constexpr int kSteps = 30;
  Batches batches(make_pool());
  measure_traced("cnn_local", bench, part.name, kSteps, batches, cnn());
  measure_eager("cnn_local", bench, part.name, kSteps, batches, cnn());
}

}  // namespace muster::bench
