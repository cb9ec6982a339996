#pragma once

#include <memory>
#include <string>
#include <vector>

#include "muster/distribute/servers/ps_incarnations.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/session/local_master.h"

namespace muster {

struct PsRunnerOptions {
  std::vector<std::string> tasks;  // that programs may use, full names
  std::string container;           // of their variables
  std::shared_ptr<Peers> peers;    // reaches all of them
};

// Runs programs with variables on parameter servers from this process, one call each. Thread-safe.
class PsRunner {
 public:
  PsRunner(PsRunnerOptions options, const PsIncarnations& incarnations);

  // Throws the error restarted() for a parameter server that is not the one that it was.
  std::vector<at::Tensor> run(const Program& program, std::vector<at::Tensor> arguments);

 private:
  const PsRunnerOptions options_;
  const PsIncarnations& incarnations_;
  LocalWorker worker_;  // this process, as a task of the cluster
  LocalMaster master_;
  const std::string session_;
};

}  // namespace muster
