// A task that does all that tasks do, in this process or behind a wire. Whoever needs one part of that asks for the
// part.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/runtime/executor/parts.h"
#include "muster/runtime/executor/program_runner.h"
#include "muster/runtime/variables/variable_keeper.h"

namespace muster {

struct WorkerStatus {
  std::string task{};
  uint64_t incarnation = 0;  // another one after every start
  std::vector<std::string> devices{};
  std::string default_device{};
  size_t programs = 0;
  size_t variables = 0;
  int64_t variable_bytes = 0;
  size_t sessions = 0;
  size_t sources = 0;
  uint64_t requests = 0;       // since it was started
  int64_t resident_bytes = 0;  // of the process
  double uptime_seconds = 0;
  // Since the start. Runs are those that coordinators have sent, with all that they wait for.
  double cpu_seconds = 0;                                       // of the process
  double run_seconds = 0, input_seconds = 0, peer_seconds = 0;  // of runs; of those waiting for elements, and for tasks
  int cores = 0;                                                // that it uses for ops
  int machine_cores = 0;                                        // of its machine; 0: nobody says
  double machine_idle_seconds = 0;                              // of all of them, whoever uses them
  std::string input_stage{};  // that limits the sequence which runs have waited for most
  int workers = 0;            // of its cluster, and the chief if there is one, as its own list has them; 0: no cluster
  std::string lost{};         // why it refuses all work until it is started anew (lost_device.h); "": it does not
};

using StatusDone = std::function<void(const Status&, WorkerStatus)>;

// Whoever has sequences of examples, for its programs to read. Thread-safe. Every method throws Error.
class SequenceReader {
 public:
  virtual ~SequenceReader() = default;

  // Opens a sequence of examples, which programs take from by muster::next under this number. AlreadyExists if the
  // number is taken. It goes with its owner as a program does.
  virtual void open_source(uint64_t number, const std::string& description, const Owner& owner = {}) = 0;
  virtual void close_source(uint64_t number) = 0;  // nothing happens if there is none
  // Where its next element is, for whoever opens it again from there; see Dataset::from.
  virtual std::string source_position(uint64_t number) = 0;
  // Of a sequence that others read, too: answers what it has asked for, and calls `wanted` once, on any thread, when it
  // asks for more, when it is closed, or when the task is gone. `cancellation` may be null, and lives until then.
  // Throws nothing, waits for nothing.
  virtual void hand_out(uint64_t number, const PartsGiven& given, const Cancellation* cancellation,
                        PartsDone wanted) = 0;
};

// Thread-safe. Every method throws Error unless it says otherwise.
class Worker : public ProgramRunner, public VariableKeeper, public SequenceReader {
 public:
  // Says that the owner is there. Whoever is not heard of for as long as the task says in its answer loses what it has
  // left there: programs, sequences, values for parts, and the variables of the containers. Every run renews, too.
  // Throws nothing, waits for nothing.
  virtual void renew(const Lease& lease, RenewDone done) = 0;
  // Drops all of that now.
  virtual void release(const Lease& lease) = 0;

  // `wait`: for a task that is not up yet, until its time to connect is over.
  virtual WorkerStatus status(bool wait = false) = 0;
  // The same without waiting for the task to be up: `done` is called once, on any thread. `cancellation` lives until
  // then. Throws nothing.
  virtual void start_status(const Cancellation& cancellation, StatusDone done) = 0;
};

// Finds the workers of other tasks. Thread-safe.
class Peers {
 public:
  virtual ~Peers() = default;
  // Throws Error{kInvalidArgument} if the cluster has no such task. Does not wait for it to be there.
  virtual std::shared_ptr<Worker> worker(const std::string& task) = 0;
};

// A variable in a container has another name than one outside: "container//name".
std::string name_in_container(const std::string& container, const std::string& name);
std::string container_of(const std::string& name);

}  // namespace muster
