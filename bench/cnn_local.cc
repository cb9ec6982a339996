#include "bench/training.h"
#include "bench/workloads.h"

namespace muster::bench {

void cnn_local(const Part& part, Bench& bench) {
  constexpr int kSteps = 30;
  const Pool pool = make_pool();
  measure_training("cnn_local", bench, kSteps, {traced(part.name, pool, cnn()), eager(part.name, pool, cnn())});
}

}  // namespace muster::bench
