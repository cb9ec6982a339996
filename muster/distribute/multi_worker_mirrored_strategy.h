#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "muster/cluster/resolvers/cluster_resolver.h"
#include "muster/cluster/server.h"
#include "muster/distribute/strategy.h"

namespace muster {

// What carries sums from worker to worker.
enum class CommunicationImplementation {
  // What is on GPUs goes through NCCL if every worker has a GPU of its own, else through the host as all the rest. How
  // it goes there, whether processes of one machine read each other's memory, use one between them or TCP, and up to
  // which size the host is faster than NCCL, is what was measured when the workers met; the first one says so in its
  // log.
  kAuto,
  kRing,  // through the host, by sizes that suit most machines: nothing is measured
  kNccl,  // through NCCL, whatever its size; it is an error if workers cannot use it
};

struct CommunicationOptions {
  // Gradients are summed over the workers in packs of so many bytes, each as soon as the backward pass has made it.
  int64_t bytes_per_pack = int64_t{8} << 20;
  // For what workers do together: so long one may be slower than the others, while it evaluates or saves. One whose
  // process does not even answer is lost after 10 s, whatever this says.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  CommunicationImplementation implementation = CommunicationImplementation::kAuto;  // the same at all workers
};

struct MultiWorkerOptions {
  // Of each process, as MirroredStrategy has them. Without: all its GPUs, else its first CPU device.
  std::vector<std::string> devices{};
  std::chrono::milliseconds start_timeout = std::chrono::minutes(5);  // until all workers are there
  CommunicationOptions communication{};
  Credentials credentials{};  // of this task
  bool insecure = false;      // listen beyond loopback without credentials
};

// Every worker of a cluster runs the same program, each a process with a copy of every variable on each of its devices;
// a step is one of all of them. Gradients and what replicas write are put together over all workers, so all copies
// stay equal, bit for bit; only what a module writes to its buffers in place, such as the running statistics of batch
// norm, stays with each replica, and the first one of the first worker is saved. Variables begin with the values that
// the first worker has for them. The constructor starts this worker's server and waits for the others, and says every
// few seconds for whom.
//
// Where each process has one device here, a net may be spread over several more of them: what is made in a DeviceScope
// is on that device of every process, and computes there in such a scope.
//   muster::DeviceScope second("/device:GPU:1");  auto head = strategy.make<torch::nn::Linear>(4096, 1000);
//
// All of them make the same calls in the same order: variables and what is assigned to them, the value() of one that is
// put together when it is read, strategy.run, reduce, gather and distribute. What is assigned by one worker alone is
// seen by nobody: the copies differ from then on. Who does otherwise, hangs for longer than `communication.timeout` or
// is lost, fails the step of all, with an error that names it; then the job is started anew, and goes on from its last
// checkpoint. A worker counts as lost when its process has ended, was started anew, or has answered nothing for 10 s:
// it was stopped, or its machine or the network is down. One that only computes for long answers. Only the chief writes
// checkpoints; save() is called by all all the same, and returns when it is written.
class MultiWorkerMirroredStrategy : public Strategy {
 public:
  // The resolver says who the workers are ("worker", and "chief" if there is one), and which one this process is.
  // Throws Error{kInvalidArgument} if it does not, Error{kDeadlineExceeded} with the names of those that did not come,
  // Error{kFailedPrecondition} for kNccl where there is none, with what is missing, and if workers have lists of
  // different lengths, or different numbers of devices.
  explicit MultiWorkerMirroredStrategy(const ClusterResolver& resolver, MultiWorkerOptions options = {});

  int worker() const;  // the rank of this process
};

}  // namespace muster
