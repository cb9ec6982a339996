// Records what a C++ function does with tensors as a program.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "muster/graph/elements.h"
#include "muster/graph/program.h"
#include "muster/trace/tracer/captured_tensor.h"
#include "muster/trace/variable.h"

namespace muster {

// True while this thread traces a function: what is called then becomes part of the trace.
bool tracing();

// A function traced on example arguments.
struct TracedProgram {
  // Of a module that the function used: which of its parts are in training mode, as it was then.
  struct Mode {
    std::shared_ptr<const ModuleModes> module{};
    uint64_t number = 0;
  };

  Program program{};
  std::vector<std::shared_ptr<Variable::State>> variables{};  // kept alive with the program; as in Program::variables
  std::vector<bool> compact{};  // per argument: the program counts elements from the start of its storage
  std::vector<bool> written{};  // per argument: the program writes to it
  std::vector<Mode> modes{};    // dropout and batch norm do something else in another one
  std::vector<CapturedTensor> captured{};
  std::string kept_outside{};  // of tensors that the function made and somebody still holds, in words; "" if none
};

using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& arguments)>;

struct TraceOptions {
  std::string name = "function";
  uint64_t seed = 0;
  std::string place{};  // of the function in the source, for messages: "train.cc:12"
  // Record only ops that every kind of device has. Attention and LSTM have fast ones that exist for the CPU alone.
  bool portable = false;
  size_t values_below = 256 << 10;  // bytes: an op on more is not computed, unless its values turn out to be needed
  ElementSpecs elements{};  // that it takes first from sequences; those that are not given are as the sequences say
};

// Calls `function` on copies of `examples`, with variables at their current values, and returns what it did. Variables,
// the examples and the global random stream are left as they were. One trace at a time in a process; calls nest by
// inlining. Throws what `function` throws, and Error{kInvalidArgument} for what cannot be replayed: a value or a shape
// that depends on data, a write to a tensor that is neither an argument nor a variable.
TracedProgram trace(const TensorFunction& function, const std::vector<at::Tensor>& examples,
                    const TraceOptions& options);

// Holds up traces of other threads; empty if one is under way, in which modules' tensors are not as their owners have
// them. REQUIRES: !tracing().
std::unique_lock<std::mutex> try_between_traces();

// Whether a function that reads values of tensors runs once more, with others in their place, to see what depends on
// them.
bool is_probing();

}  // namespace muster
