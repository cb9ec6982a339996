#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

namespace muster {

// Counts a batch of a batch norm that tracks statistics. `add` then gives the batch its share of them, which is a
// number, or a tensor where they are those of all batches so far.
template <class Norm, class Add>
void count_batch(Norm& norm, const Add& add) {
  c10::AutoGradMode no_gradients(false);
  norm.num_batches_tracked.add_(1);
  if (norm.options.momentum()) {
    add(*norm.options.momentum());
  } else {
    add(norm.num_batches_tracked.to(norm.running_mean.scalar_type()).reciprocal());
  }
}

}  // namespace muster
