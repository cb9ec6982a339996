// Whoever runs programs: in this process or behind a wire. What is above never asks which.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "muster/graph/program.h"
#include "muster/runtime/worker/owner.h"
#include "muster/runtime/worker/rendezvous.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {

// Names a program that a worker has made ready.
struct ProgramHandle {
  uint64_t id = 0;
  bool operator==(const ProgramHandle&) const = default;
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
// Thread-safe. Every method throws Error unless it says otherwise.
class ProgramRunner {
 public:
  virtual ~ProgramRunner() = default;

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

  // Fetches what a part of a step has left here, or will. Throws nothing.
  virtual void receive(uint64_t meeting, int64_t edge, const RunOptions& options, ReceiveDone done) = 0;
  // Ends a step that has failed elsewhere: nobody waits for its values any more. Throws nothing, waits for nothing.
  virtual void abort(uint64_t meeting, const Status& why) = 0;
};

}  // namespace muster
