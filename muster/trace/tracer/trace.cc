#include "muster/trace/tracer/trace.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <mutex>
#include <optional>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/graph/aliases.h"
#include "muster/graph/serialize.h"
#include "muster/trace/tracer/dispatcher_hook.h"
#include "muster/trace/tracer/tracer.h"

namespace muster {
namespace {

constexpr size_t kMostReadsToTryOneByOne = 16;

std::mutex& trace_mutex() {
  static std::mutex mutex;
  return mutex;
}

// While tracing, random numbers come from the global stream, gradients gather in the modules and autocast remembers
// what it cast: all of that belongs to the caller and is put back.
class CallersState {
 public:
  CallersState() : generator_(at::globalContext().defaultGenerator(at::kCPU).clone()) {
    at::autocast::clear_cache();
    for (auto& variable : Variable::State::all_adopted()) {
      if (!variable->adopted_was_changed()) as_adopted_.push_back(variable);
      if (!variable->adopted.grad().defined()) continue;
      gradients_.emplace_back(variable, variable->adopted.grad());
      variable->adopted.mutable_grad().reset();
    }
  }
  ~CallersState() {
    at::autocast::clear_cache();
    for (auto& variable : Variable::State::all_adopted()) {
      if (variable->adopted.grad().defined()) variable->adopted.mutable_grad().reset();
    }
    for (auto& [variable, gradient] : gradients_) variable->adopted.mutable_grad() = gradient;
    for (auto& variable : as_adopted_) variable->note_adopted_version();  // what the trace writes to stands for it
    at::Generator global = at::globalContext().defaultGenerator(at::kCPU);
    std::lock_guard lock(global.mutex());
    global.set_state(generator_.get_state());
  }
  CallersState(const CallersState&) = delete;
  CallersState& operator=(const CallersState&) = delete;

 private:
  at::Generator generator_;
  std::vector<std::pair<std::shared_ptr<Variable::State>, at::Tensor>> gradients_;
  std::vector<std::shared_ptr<Variable::State>> as_adopted_;  // modules' tensors that nobody has written to
};

// Attention and LSTM ask the context which of their implementations are welcome. One trace at a time runs, but libtorch
// has one context: eager code on other threads sees these switches, too, while a trace lasts.
class WithoutCpuOps {
 public:
  explicit WithoutCpuOps(bool portable) : portable_(portable) {
    if (!portable_) return;
    context_.setUserEnabledMkldnn(false);
    context_.setSDPUseFlash(false);
  }
  ~WithoutCpuOps() {
    if (!portable_) return;
    context_.setUserEnabledMkldnn(mkldnn_);
    context_.setSDPUseFlash(flash_);
  }
  WithoutCpuOps(const WithoutCpuOps&) = delete;
  WithoutCpuOps& operator=(const WithoutCpuOps&) = delete;

 private:
  at::Context& context_ = at::globalContext();
  const bool portable_;
  const bool mkldnn_ = context_.userEnabledMkldnn();
  const bool flash_ = context_.userEnabledFlashSDP();
};

std::vector<TracedProgram::Mode> modes_of(const std::vector<std::shared_ptr<Variable::State>>& variables) {
  std::vector<TracedProgram::Mode> modes;
  for (const auto& variable : variables) {
    auto known = [&](const TracedProgram::Mode& mode) { return mode.module == variable->modes; };
    if (variable->modes == nullptr || std::any_of(modes.begin(), modes.end(), known)) continue;
    modes.push_back({variable->modes, (*variable->modes)()});
  }
  return modes;
}

}  // namespace

// Traces once for the program and, if C++ has read values of tensors, again with other values in their place: the
// program must not depend on them. A value that makes the function fail says nothing (one_hot checks its classes so);
// then each value is changed alone, a little, which a check lets pass in one direction at least.
class ReadCheck {
 public:
  ReadCheck(const TensorFunction& function, const std::vector<at::Tensor>& examples, const TraceOptions& options)
      : function_(function), examples_(examples), options_(options) {}

  // The read that the program depends on; nothing if there is none.
  std::optional<std::string> decisive(const Program& program, const std::vector<std::string>& reads) const {
    const std::string recorded = serialize(program);
    const size_t limit = 2 * (program.instructions.size() + reads.size()) + 1000;
    bool failed = false;
    for (auto way : {Probe::kPlusOne, Probe::kMinusOne, Probe::kFarUp, Probe::kFarDown}) {
      const Outcome outcome = trace_with({way, {}}, recorded, limit);
      if (outcome == Outcome::kOther) return reads.front();
      failed = failed || outcome == Outcome::kFailed;
    }
    if (!failed) return std::nullopt;
    if (reads.size() > kMostReadsToTryOneByOne) return reads.front();
    for (size_t read = 0; read < reads.size(); ++read) {
      const Outcome up = trace_with({Probe::kPlusOne, read}, recorded, limit);
      const Outcome down = trace_with({Probe::kMinusOne, read}, recorded, limit);
      const bool same = up == Outcome::kSame || down == Outcome::kSame;
      if (!same || up == Outcome::kOther || down == Outcome::kOther) return reads[read];
    }
    return std::nullopt;
  }

  // What the function leaves outside of itself is of the values that there were.
  void run_as_it_is() const { trace_with({}, "", 0); }

 private:
  using Probe = Tracer::Probe;
  enum class Outcome { kSame, kOther, kFailed };

  Outcome trace_with(Probe probe, const std::string& recorded, size_t limit) const {
    Tracer tracer(options_, nullptr, probe);
    tracer.limit_ = limit;
    CallersState callers_state;
    try {
      return serialize(tracer.trace_function(function_, examples_)) == recorded ? Outcome::kSame : Outcome::kOther;
    } catch (const Error& error) {
      return error.status().code() == StatusCode::kCancelled ? Outcome::kOther : Outcome::kFailed;
    } catch (const std::exception&) {
      return Outcome::kFailed;
    }
  }

  const TensorFunction& function_;
  const std::vector<at::Tensor>& examples_;
  const TraceOptions& options_;
};

bool is_probing() {
  const Tracer* tracer = Tracer::current();
  return tracer != nullptr && tracer->probe_.way != Tracer::Probe::kNone;
}

std::unique_lock<std::mutex> try_between_traces() { return {trace_mutex(), std::try_to_lock}; }

TracedProgram trace(const TensorFunction& function, const std::vector<at::Tensor>& examples,
                    const TraceOptions& options) {
  // A trace inside of one belongs to it, whichever of its threads begins it.
  std::unique_lock one_at_a_time(trace_mutex(), std::defer_lock);
  if (!tracing()) one_at_a_time.lock();
  install_dispatcher_hook();
  WithoutCpuOps without_cpu_ops(options.portable);

  c10::InferenceMode as_outside_of_it(false);
  TracedProgram traced;
  // As the caller has set them: the function may call train() or eval() itself, and will not when the program runs.
  const std::vector<TracedProgram::Mode> modes_before = modes_of(Variable::State::all_adopted());
  const auto traced_by = [&](Tracer& tracer) {
    CallersState callers_state;
    return tracer.trace_function(function, examples);
  };
  Tracer quick(options, nullptr, {}), thorough(options, nullptr, {});
  quick.may_leave_values_out_ = true;
  std::optional<Program> program;
  try {
    program = traced_by(quick);
  } catch (...) {
    if (!quick.left_values_out_) throw;
  }
  const bool done = program && !quick.needs_values_;
  if (!done) program = traced_by(thorough);
  Tracer& tracer = done ? quick : thorough;
  traced.program = std::move(*program);
  const ReadCheck check(function, examples, options);
  traced.kept_outside = tracer.kept_outside();
  if (!traced.kept_outside.empty() && tracer.left_values_out_) check.run_as_it_is();
  traced.variables = tracer.variables_;
  for (TracedProgram::Mode& mode : modes_of(traced.variables)) {
    const auto before = std::find_if(modes_before.begin(), modes_before.end(),
                                     [&](const auto& known) { return known.module == mode.module; });
    traced.modes.push_back(before == modes_before.end() ? std::move(mode) : *before);
  }
  traced.captured = std::move(tracer.captured_);
  // One that is gone already was made by the function, in a way that libtorch does not tell (from_blob).
  std::erase_if(traced.captured, [](const CapturedTensor& captured) { return !captured.alive(); });
  const Aliases aliases(traced.program);
  for (const ProgramArgument& argument : traced.program.arguments) {
    traced.written.push_back(aliases.written(aliases.group(argument.value)));
  }
  traced.compact.assign(examples.size(), false);
  for (size_t argument : tracer.compact_arguments_) traced.compact[argument] = true;
  if (tracer.reads_.empty()) return traced;

  const std::string place = options.place.empty() ? "" : str_cat(" (", options.place, ")");
  if (auto read = check.decisive(traced.program, tracer.reads_)) {
    throw invalid_argument(
        options.name, place,
        ": the value of a tensor decides what the function does or which number it returns, which a program cannot "
        "do: ",
        *read, "; use muster::cond, muster::while_loop or torch::where, and return the tensor instead of the number");
  }
  check.run_as_it_is();
  MUSTER_LOG(warning)
      << options.name << place << ": reads the value of a tensor while it is traced (" << tracer.reads_.front()
      << "); the program seems not to depend on it, and later calls will not read it again: return the tensor";
  return traced;
}

}  // namespace muster
