// Ends a job that is told to, with a checkpoint.
#pragma once

#include <chrono>
#include <cstdint>

#include "muster/distribute/strategy.h"
#include "muster/train/checkpoints.h"

namespace muster {

// What main() returns then, so that whoever has started the job knows that it wants to be started anew.
inline constexpr int kPreempted = 42;

struct PreemptionOptions {
  // Workers that train in step ask each other so often whether one of them was told, between two steps.
  std::chrono::milliseconds look_every{500};
};

// A machine is wanted for something else, and its worker gets a SIGTERM: the job saves a checkpoint and ends, all
// workers after the same step, whichever was told. From the constructor to the destructor the signal does nothing else.
// On parameter servers the chief is who gets it: others take the steps of a worker that ends, and a server that ends
// takes its variables along, so it has to be there until the chief has saved (`muster run` sees to that).
//   muster::Preemption preemption(strategy, checkpoints);
//   while (step < steps) {
//     strategy.run(train, batches);
//     if (preemption.after_step(++step)) return muster::kPreempted;
//   }
class Preemption {
 public:
  Preemption(const Strategy& strategy, Checkpoints& checkpoints, PreemptionOptions options = {});
  ~Preemption();
  Preemption(const Preemption&) = delete;
  Preemption& operator=(const Preemption&) = delete;

  // True: the job ends, and this step is saved. Every worker calls it after every step; most of the calls cost nothing.
  // On parameter servers the chief does, after it has joined what it scheduled.
  // Throws what Checkpoints::save() throws.
  bool after_step(int64_t step);
  // Whether the job is to end, for who saves it itself. Likewise of every worker, after every step or every epoch.
  bool somebody_was_told();

 private:
  const Strategy strategy_;
  Checkpoints& checkpoints_;
  const PreemptionOptions options_;
  int64_t steps_ = 0, look_after_ = 1;  // since the last look, until the next; the same at all workers
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
};

}  // namespace muster
