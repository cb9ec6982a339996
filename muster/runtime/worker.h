// Whoever runs programs: in this process or behind a wire. What is above never asks which.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/graph/program.h"
#include "muster/runtime/owner.h"
#include "muster/runtime/rendezvous.h"
#include "muster/runtime/run_options.h"
#include "muster/runtime/variable_files.h"

namespace muster {

// Names a program that a worker has made ready.
struct ProgramHandle {
  uint64_t id = 0;
  bool operator==(const ProgramHandle&) const = default;
};

struct VariableInfo {
  std::string name{};
  TensorSpec spec{};
  std::string device{};
  uint64_t version = 0;
  bool initialized = false;
  uint64_t whole_reads = 0;  // by runs that took all of it rather than rows
};

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
};

// One of several runs that travel together. Variants are traces of the same function for elements of other shapes: the
// program runs whose elements look like those that its sequences give.
struct ProgramRun {
  ProgramHandle handle{};
  std::vector<at::Tensor> arguments{};
  bool wanted = true;  // somebody looks at its results; else they stay where they are made
  std::vector<ProgramHandle> variants{};
};
struct RunOutcome {
  Status status{};
  std::vector<at::Tensor> outputs{};  // none if they are not wanted
  std::chrono::nanoseconds took{};    // at the worker
  uint32_t variant = 0;               // the program that ran: 0 is `handle`, i is variants[i - 1]
};
using RunsDone = std::function<void(const Status&, std::vector<RunOutcome>)>;

using RunDone = std::function<void(const Status&, std::vector<at::Tensor>)>;
using StatusDone = std::function<void(const Status&, WorkerStatus)>;

// Thread-safe. Every method throws Error unless it says otherwise.
class Worker {
 public:
  virtual ~Worker() = default;

  // Checks, places and prepares the program, once for any number of runs. Its parts are registered with their tasks. It
  // goes when the lease of its owner ends; nobody's stays.
  virtual ProgramHandle register_program(const Program& program, const Owner& owner = {}) = 0;
  // Runs that are under way end as they would have. NotFound if there is no such program.
  virtual void deregister_program(ProgramHandle handle) = 0;

  // A run takes its elements (graph/elements.h) before it does anything else. If they look otherwise than the program
  // says, it gives them back and fails with what other_elements_of() understands: nothing has happened.
  virtual std::vector<at::Tensor> run(ProgramHandle handle, std::vector<at::Tensor> arguments,
                                      const RunOptions& options = {}) = 0;
  // The same without waiting: `done` is called once, on any thread. What `options` points to lives until then. Throws
  // nothing.
  virtual void start(ProgramHandle handle, std::vector<at::Tensor> arguments, const RunOptions& options,
                     RunDone done) = 0;

  // Runs one after the other, in one message: for many short programs. A run that fails does not keep the others from
  // running. `done` gets an error if none of that can be known. abort(options.meeting) cancels them, and the answer
  // still comes when nothing of it runs any more. Throws nothing.
  virtual void start_runs(std::vector<ProgramRun> runs, const RunOptions& options, RunsDone done) = 0;

  // Opens a sequence of examples, which programs take from by muster::next under this number. AlreadyExists if the
  // number is taken. It goes with its owner as a program does.
  virtual void open_source(uint64_t number, const std::string& description, const Owner& owner = {}) = 0;
  virtual void close_source(uint64_t number) = 0;  // nothing happens if there is none

  // Fetches what a part of a step has left here, or will. Throws nothing.
  virtual void receive(uint64_t meeting, int64_t edge, const RunOptions& options, ReceiveDone done) = 0;
  // Ends a step that has failed elsewhere: nobody waits for its values any more. Throws nothing, waits for nothing.
  virtual void abort(uint64_t meeting, const Status& why) = 0;

  // Says that the owner is there. Whoever is not heard of for as long as the task says in its answer loses what it has
  // left there: programs, sequences, values for parts, and the variables of the containers. Every run renews, too.
  // Throws nothing, waits for nothing.
  virtual void renew(const Lease& lease, RenewDone done) = 0;
  // Drops all of that now.
  virtual void release(const Lease& lease) = 0;

  virtual std::vector<VariableInfo> variables() = 0;
  // Writes variables into a file of this task's own, and reads them from a whole checkpoint (variable_files.h). However
  // long that takes: it ends when it is done or the task is gone.
  virtual std::vector<ShardEntry> save(const std::string& directory, const std::vector<StoredVariable>& variables) = 0;
  virtual void restore(const std::string& checkpoint, const std::vector<StoredVariable>& variables,
                       RestoreStage stage) = 0;
  // Drops the variables of these containers ("": those without one), and the programs that use them.
  virtual void reset(const std::vector<std::string>& containers) = 0;
  // `wait`: for a task that is not up yet, until its time to connect is over.
  virtual WorkerStatus status(bool wait = false) = 0;
  // The same without waiting, tried once: `done` is called once, on any thread. `cancellation` lives until then. Throws
  // nothing.
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
