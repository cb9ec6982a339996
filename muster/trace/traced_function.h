// The part of a Function that has no types: its traces and how they run.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "muster/runtime/worker/worker.h"
#include "muster/trace/signature.h"
#include "muster/trace/tracer/trace.h"

namespace muster {

struct FunctionOptions {
  std::string name{};              // for messages and dumps; else the place in the source
  std::optional<uint64_t> seed{};  // of its random ops; else drawn from libtorch's global seed
  std::optional<bool> portable{};  // see TraceOptions; else true where the local default device is no CPU
  bool many_shapes = false;        // it is meant to be traced often, so that nobody is told
};

struct FunctionStats {
  int64_t hits = 0;      // calls that found their trace
  int64_t misses = 0;    // calls that were traced
  int64_t retraces = 0;  // misses after the first
};

// Thread-safe: a signature is traced once, by whoever comes first, while the others wait.
class TracedFunction {
 public:
  struct Entry;
  // The trace of the function and arguments at hand, for other elements.
  using TraceForElements = std::function<std::shared_ptr<Entry>(const ElementSpecs& elements)>;
  // The trace of one signature.
  struct Entry {
    Entry(TracedProgram t, std::shared_ptr<const void> r)
        : traced(std::move(t)), result(std::move(r)), elements(first_element_specs(traced.program)) {}
    ~Entry();  // its program goes from the local worker
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;
    static constexpr int64_t kLong = 1'000'000'000;  // until it is known

    // The traces for elements of other shapes that were found so far. Their number only grows.
    std::vector<std::shared_ptr<Entry>> variants() ABSL_LOCKS_EXCLUDED(mu);
    // The one of them for such elements, made by `trace` if it is the first.
    std::shared_ptr<Entry> variant(const ElementSpecs& found, const TraceForElements& trace) ABSL_LOCKS_EXCLUDED(mu);

    // Once: another process that runs the program writes to its own copies of the arguments.
    void warn_of_lost_writes();

    const TracedProgram traced;
    const std::shared_ptr<const void> result;  // the function's result without its tensors
    const ElementSpecs elements;               // that a run takes first
    std::atomic<bool> told_of_changes{false};  // of what it captured
    std::atomic<bool> told_of_lost_writes{false};
    std::atomic<int64_t> took_ns{kLong};  // at the worker that ran it last, if it was one of a coordinator
    absl::Mutex mu;
    std::optional<ProgramHandle> handle ABSL_GUARDED_BY(mu);  // at the local worker, once it ran there
    std::vector<std::shared_ptr<Entry>> known_variants ABSL_GUARDED_BY(mu);
  };
  // What the typed door knows and this class does not: how to call the function, and what its arguments look like.
  struct Call {
    TensorFunction function;
    std::function<std::shared_ptr<const void>()> result;     // after `function` was called
    std::function<std::vector<std::string>()> descriptions;  // of the leaves of the arguments
  };

  static constexpr size_t kMostEntries = 1'000;

  TracedFunction(FunctionOptions options, std::string place);
  TracedFunction(const TracedFunction&) = delete;
  TracedFunction& operator=(const TracedFunction&) = delete;

  const std::string& name() const { return options_.name; }
  FunctionStats stats() const ABSL_LOCKS_EXCLUDED(mu_);
  // As it was traced for the call before; nothing before the first.
  std::optional<Program> last_program() const ABSL_LOCKS_EXCLUDED(mu_);

  // `tensors` are those of the call, and become the arguments of the program: tensors that share memory are one, if
  // that matters. `elements`: those that it takes first from sequences, if they are not as the sequences say; part of
  // the signature. Throws what the function throws; errors of libtorch are Errors that name the function and its
  // arguments.
  std::shared_ptr<Entry> entry(Signature signature, std::vector<at::Tensor>& tensors, const Call& call,
                               const ElementSpecs& elements = {}) ABSL_LOCKS_EXCLUDED(mu_, tracing_);
  // Runs on the local worker.
  static std::vector<at::Tensor> run(Entry& entry, std::vector<at::Tensor> tensors, const RunOptions& options);

  // Lets `run` run the entry, or its variant for the elements that the sequences give, and `entry` be that one.
  using Run = std::function<std::vector<at::Tensor>(const std::shared_ptr<Entry>&, std::vector<at::Tensor>)>;
  static std::vector<at::Tensor> run_fitting(std::shared_ptr<Entry>& entry, const std::vector<at::Tensor>& tensors,
                                             const Run& run, const TraceForElements& trace);

  // Calls within calls while tracing; throws when the recursion has no end.
  class [[nodiscard]] Inlined {
   public:
    explicit Inlined(const TracedFunction& function);
    ~Inlined();
    Inlined(const Inlined&) = delete;
    Inlined& operator=(const Inlined&) = delete;
  };

 private:
  // The one that was not used for longest, if there are too many. To be destroyed without the lock.
  std::shared_ptr<Entry> take_unused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The trace for a call; null if there is none yet. Where the traces so far show that it matters which arguments share
  // memory, `shared` says so afterwards, and the signature has it.
  std::shared_ptr<Entry> known(Signature& signature, SharedMemory& shared, const std::vector<at::Tensor>& tensors)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::shared_ptr<Entry> add_entry(const Signature& signature, const SharedMemory& shared,
                                   const std::vector<at::Tensor>& tensors, const Call& call,
                                   const ElementSpecs& elements) ABSL_EXCLUSIVE_LOCKS_REQUIRED(tracing_);
  TracedProgram trace_call(const Call& call, const SharedMemory& shared, const std::vector<at::Tensor>& tensors,
                           const ElementSpecs& elements);
  std::string in_words() const;  // function "step" (train.cc:12)
  void warn_if_often(const std::vector<std::string>& descriptions, const ElementSpecs& elements)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void warn_of_frozen(const TracedProgram& traced) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void warn_of_changes(Entry& entry) const;

  FunctionOptions options_;
  const std::string place_;

  absl::Mutex tracing_ ABSL_ACQUIRED_BEFORE(mu_);  // held while one signature is traced
  mutable absl::Mutex mu_;
  // The traces that were used last, up to kMostEntries: a signature that never comes again must not cost memory for
  // ever, here and wherever its program was sent.
  struct Known {
    std::shared_ptr<Entry> entry;
    int64_t last_use;  // by number of the call
  };
  // One for each mode of the modules that are used: nobody knows before the trace which those are.
  absl::flat_hash_map<Signature, std::vector<Known>> entries_ ABSL_GUARDED_BY(mu_);
  size_t entry_count_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<uint64_t> traces_ = 0;  // begun
  bool told_of_frozen_ ABSL_GUARDED_BY(mu_) = false;
  FunctionStats stats_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> last_descriptions_ ABSL_GUARDED_BY(mu_);
  ElementSpecs last_elements_ ABSL_GUARDED_BY(mu_);
};

// "train.cc:12"; "" of an empty one.
std::string place_in_source(const std::source_location& where);

// Throws Error{kFailedPrecondition} for a program with variables that a strategy has made, which only its coordinator
// reaches. `what_it_cannot`: be, such as "run by a session".
void refuse_variables_of_strategies(const TracedProgram& traced, const char* what_it_cannot);

}  // namespace muster
