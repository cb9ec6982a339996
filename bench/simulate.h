// A cluster of any size on one machine: what its coordinator and its parameter servers cost.
#pragma once

#include <string>

#include "bench/simulated_workers.h"

namespace muster::bench {

struct Simulation {
  int workers = 1000;
  int ps = 16;
  int processes = 4;  // that the workers share
  double seconds = 10;
  double cut_seconds = 3;  // 0: nobody is cut off
  double cut_share = 1;    // of the workers
  Delays delays{};
};

// Prints a line of JSON for each figure, and a table on stderr. $MUSTER_CURVES, a directory, gets what `muster plot`
// draws: the rate of closures from one tenth of a second to the next.
void simulate(const Simulation& simulation);

}  // namespace muster::bench
