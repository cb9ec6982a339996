// What one worker takes of a sequence while others take their parts of it.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "muster/graph/elements.h"
#include "muster/runtime/worker/element_source.h"
#include "muster/trace/across_workers.h"

namespace muster {

// How many rows a worker takes in its steps, over and over, if batches of `batch` rows are for all replicas: what
// TensorFlow's batch_sizes_for_worker says. All workers together take `batch` rows in each step, as evenly as they go,
// and after as many steps as there are workers each has taken as many.
std::vector<int64_t> rows_of_steps(int64_t batch, int workers, int replicas_per_worker, int worker);

struct WorkerShareOptions {
  ElementSpec spec;             // what the elements look like
  std::vector<int64_t> rows{};  // of rows_of_steps(); empty: elements are taken as they are
  int64_t per_step = 1;         // so many elements, one for each replica
  bool endless = false;         // those of all workers
  AcrossWorkers across{};
};

// Workers take a step together or not at all, so all sequences end with the longest: who has nothing left takes batches
// without rows. Unless they are endless, the workers tell each other before each step whether they have something left.
// Thread-safe.
class WorkerShare : public ElementSource {
 public:
  WorkerShare(std::unique_ptr<ElementSource> source, WorkerShareOptions options);

  std::optional<Element> next() override ABSL_LOCKS_EXCLUDED(mu_);
  bool begin_again() override ABSL_LOCKS_EXCLUDED(mu_);  // all workers do, or none
  void close() override { source_->close(); }

 private:
  std::optional<Element> own() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool anybody_goes_on(bool here) const;
  Element without_rows() const;
  int64_t rows_in(const Element& batch) const;
  void tell_others(const Status& failure) const;

  const std::unique_ptr<ElementSource> source_;
  const WorkerShareOptions options_;

  absl::Mutex mu_;                            // held while an element is made: they are one sequence
  Element rest_ ABSL_GUARDED_BY(mu_);         // rows of batches that were taken and not yet given
  size_t step_ ABSL_GUARDED_BY(mu_) = 0;      // of options_.rows
  int64_t in_step_ ABSL_GUARDED_BY(mu_) = 0;  // elements that were given in this step
  bool ended_ ABSL_GUARDED_BY(mu_) = false;   // for all
};

}  // namespace muster
