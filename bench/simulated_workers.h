// Workers that answer as real ones do, and whose closures take as long as they are told instead of computing.
#pragma once

#include <string>

#include "muster/cluster/cluster_spec.h"

namespace muster::bench {

// How long a message takes at a worker; some workers take longer.
struct Delays {
  double mean_ms = 10;
  std::string distribution = "exponential";  // or "constant", or "lognormal", with a few that are much longer
  double stragglers = 0;                     // the share of workers that take
  double factor = 10;                        // so many times as long
};

// Runs workers `first` to `first + count - 1` of the cluster in this process, each with a server, connections and
// programs of its own, until the process is killed. SIGUSR1 takes a share of them off the network, SIGUSR2 brings them
// back; they lose nothing meanwhile.
[[noreturn]] void run_simulated_workers(const ClusterSpec& cluster, int first, int count, const Delays& delays,
                                        double cut_share);

}  // namespace muster::bench
