#include "muster/trace/traced_function.h"

#include <ATen/Context.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/op_failure.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/caller.h"
#include "muster/trace/thread_state.h"

namespace muster {
namespace {

constexpr int64_t kOften = 5;  // retraces
constexpr int kDeepest = 256;

// The same memory as a storage of its own, so that offsets count from the tensor's first element.
at::Tensor from_its_start(const at::Tensor& tensor) {
  PlainTensors plain;
  return at::from_blob(
      tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {},
      tensor.options().requires_grad(false), tensor.device());
}

// Of a function without a place it does not say how it was called: that is what another library function did.
std::string called_with(const TracedFunction::Call& call, const std::string& place) {
  constexpr size_t kMostToTell = 12;
  std::string text;
  const std::vector<std::string> arguments = place.empty() ? std::vector<std::string>() : call.descriptions();
  if (arguments.size() <= kMostToTell) {
    for (const std::string& argument : arguments) str_append(text, text.empty() ? ", called with " : ", ", argument);
  }
  if (const std::string around = describe_surroundings(); !around.empty()) str_append(text, ", in ", around);
  return text;
}

uint64_t next_seed() {
  static std::atomic<uint64_t> functions{0};
  return step_seed(at::globalContext().defaultGenerator(at::kCPU).current_seed(), functions.fetch_add(1), 0);
}

// Whether the program is another one if arguments share memory: if one of them is written to, or if gradients by them
// may be asked for, which a tensor that is there twice has once.
bool sharing_matters(const TracedProgram& traced, const std::vector<at::Tensor>& tensors) {
  if (tensors.size() < 2) return false;
  return std::find(traced.written.begin(), traced.written.end(), true) != traced.written.end() ||
         std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& tensor) { return tensor.requires_grad(); });
}

// What value() gives is the variable's own memory, and never changes while somebody looks at it.
void refuse_values_of_variables(const std::string& function, const TracedProgram& traced, const SharedMemory& shared,
                                const std::vector<at::Tensor>& tensors) {
  if (std::find(traced.written.begin(), traced.written.end(), true) == traced.written.end()) return;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (shared.empty() && !traced.written[i]) continue;
    if (const auto cell = local_worker().store().owner_of(tensors[i])) {
      throw invalid_argument("function \"", function, "\" writes to its tensor argument ", i, " (",
                             spec_of(tensors[i]).to_string(), "), which is the value of variable \"", cell->name(),
                             "\"; pass a clone() of it, or assign to the variable");
    }
  }
}

constexpr const char* kFrozen =
    "Everything that is captured and no Variable is frozen at the first call: pass it as an argument, or make it a "
    "muster::Variable";

}  // namespace

std::string TracedFunction::in_words() const {
  if (name() == place_) return str_cat("the function of ", place_);
  return str_cat("function \"", name(), "\"", place_.empty() ? "" : str_cat(" (", place_, ")"));
}

TracedFunction::Inlined::Inlined(const TracedFunction& function) {
  int& depth = ThreadState::here().inlined_depth;
  if (depth >= kDeepest) {
    throw invalid_argument("function \"", function.name(), "\" calls itself more than ", kDeepest,
                           " deep while it is traced; its recursion must end by a plain C++ value");
  }
  ++depth;
}

TracedFunction::Inlined::~Inlined() { --ThreadState::here().inlined_depth; }

TracedFunction::TracedFunction(FunctionOptions options, std::string place)
    : options_(std::move(options)), place_(std::move(place)) {
  if (options_.name.empty()) options_.name = place_;
}

TracedFunction::Entry::~Entry() {
  if (!handle) return;
  try {
    local_worker().deregister_program(*handle);
  } catch (const Error&) {
    // It went with the container of its variables.
  }
}

FunctionStats TracedFunction::stats() const {
  absl::MutexLock lock(&mu_);
  return stats_;
}

std::optional<Program> TracedFunction::last_program() const {
  absl::MutexLock lock(&mu_);
  const Known* last = nullptr;
  for (const auto& [signature, known] : entries_) {
    for (const Known& each : known) {
      if (last == nullptr || each.last_use > last->last_use) last = &each;
    }
  }
  return last == nullptr ? std::nullopt : std::optional(last->entry->traced.program);
}

std::vector<std::shared_ptr<TracedFunction::Entry>> TracedFunction::Entry::variants() {
  absl::MutexLock lock(&mu);
  return known_variants;
}

std::shared_ptr<TracedFunction::Entry> TracedFunction::Entry::variant(const ElementSpecs& found,
                                                                      const TraceForElements& trace) {
  auto known = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) -> std::shared_ptr<Entry> {
    for (const auto& each : known_variants) {
      if (each->elements == found) return each;
    }
    return nullptr;
  };
  {
    absl::MutexLock lock(&mu);
    if (auto there = known()) return there;
  }
  std::shared_ptr<Entry> made = trace(found);
  absl::MutexLock lock(&mu);
  if (auto there = known()) return there;
  known_variants.push_back(made);
  return made;
}

std::vector<at::Tensor> TracedFunction::run_fitting(std::shared_ptr<Entry>& entry,
                                                    const std::vector<at::Tensor>& tensors, const Run& run,
                                                    const TraceForElements& trace) {
  const std::shared_ptr<Entry> first = entry;
  while (true) {
    std::optional<ElementSpecs> found;
    try {
      return run(entry, tensors);
    } catch (const Error& error) {
      found = other_elements_of(error.status());
      if (!found) throw;
    }
    // Another thread may take these elements meanwhile; then it goes on with what there is then.
    entry = *found == first->elements ? first : first->variant(*found, trace);
  }
}

std::shared_ptr<TracedFunction::Entry> TracedFunction::known(Signature& signature, SharedMemory& shared,
                                                             const std::vector<at::Tensor>& tensors) {
  while (true) {
    auto it = entries_.find(signature);
    if (it == entries_.end()) return nullptr;
    auto found = std::find_if(it->second.begin(), it->second.end(), [](const Known& each) {
      const auto& modes = each.entry->traced.modes;
      return std::all_of(modes.begin(), modes.end(), [](const auto& mode) { return (*mode.module)() == mode.number; });
    });
    if (found == it->second.end()) return nullptr;
    found->last_use = stats_.hits + stats_.misses;
    if (!shared.empty() || !sharing_matters(found->entry->traced, tensors)) return found->entry;
    shared = SharedMemory(tensors);
    if (shared.empty()) return found->entry;
    signature.add(shared);
  }
}

std::shared_ptr<TracedFunction::Entry> TracedFunction::entry(Signature signature, std::vector<at::Tensor>& tensors,
                                                             const Call& call, const ElementSpecs& elements) {
  SharedMemory shared;
  auto find = [&](bool counts) {
    absl::MutexLock lock(&mu_);
    std::shared_ptr<Entry> found = known(signature, shared, tensors);
    if (found && counts) ++stats_.hits;
    return found;
  };
  std::shared_ptr<Entry> found = find(/*counts=*/true);
  if (!found) {
    absl::MutexLock one_at_a_time(&tracing_);
    found = find(/*counts=*/true);
    if (!found) {
      found = add_entry(signature, shared, tensors, call, elements);
      // This trace may have shown that it matters which arguments share memory; then there is a second one.
      if (shared.empty() && sharing_matters(found->traced, tensors)) {
        shared = SharedMemory(tensors);
        if (!shared.empty()) {
          signature.add(shared);
          const std::shared_ptr<Entry> there = find(/*counts=*/false);
          found = there ? there : add_entry(signature, shared, tensors, call, elements);
        }
      }
    }
  }
  warn_of_changes(*found);
  refuse_values_of_variables(name(), found->traced, shared, tensors);
  if (!shared.empty()) tensors = shared.merged(tensors);
  return found;
}

std::shared_ptr<TracedFunction::Entry> TracedFunction::add_entry(const Signature& signature, const SharedMemory& shared,
                                                                 const std::vector<at::Tensor>& tensors,
                                                                 const Call& call, const ElementSpecs& elements) {
  {
    absl::MutexLock lock(&mu_);
    ++stats_.misses;
    std::vector<std::string> descriptions = call.descriptions();
    descriptions.push_back(str_cat("around the call: ", describe_surroundings()));
    if (!entries_.empty()) {
      ++stats_.retraces;
      warn_if_often(descriptions, elements);
    }
    last_descriptions_ = std::move(descriptions);
    if (!options_.seed) options_.seed = next_seed();
  }
  TracedProgram traced = trace_call(call, shared, tensors, elements);
  auto made = std::make_shared<Entry>(std::move(traced), call.result());  // which the trace has made
  if (!elements.empty() && made->elements != elements) {
    throw invalid_argument("function \"", name(), "\" was traced for ", describe_elements(elements),
                           " but then takes other elements: ", describe_elements(made->elements),
                           "; which elements it takes must not depend on their shapes");
  }
  std::shared_ptr<Entry> unused;
  absl::MutexLock lock(&mu_);
  last_elements_ = made->elements;
  warn_of_frozen(made->traced);
  unused = take_unused();
  entries_[signature].push_back({made, stats_.hits + stats_.misses});
  ++entry_count_;
  return made;
}

TracedProgram TracedFunction::trace_call(const Call& call, const SharedMemory& shared,
                                         const std::vector<at::Tensor>& tensors, const ElementSpecs& elements) {
  const LocalDevices& devices = local_worker().devices();
  const bool portable = options_.portable.value_or(!devices.device(devices.default_name()).is_cpu());
  // Each trace has a stream of random numbers of its own, as calls of other shapes have with libtorch.
  const uint64_t number = traces_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t seed = number == 0 ? *options_.seed : step_seed(*options_.seed, number, /*replica=*/0);
  const TraceOptions options{.name = name(), .seed = seed, .place = place_, .portable = portable, .elements = elements};
  try {
    if (shared.empty()) return trace(call.function, tensors, options);
    auto with_views = [&](const std::vector<at::Tensor>& merged) {
      return call.function(shared.apart(merged, tensors));
    };
    return trace(with_views, shared.merged(tensors), options);
  } catch (const Error& error) {
    const Status& status = error.status();
    throw Error(Status(status.code(),
                       str_cat(status.message(), "; while tracing ", in_words(), called_with(call, place_)),
                       status.task(), status.detail()));
  } catch (const c10::Error& error) {
    const Status status = status_of_op_failure();
    const std::string caller = error.backtrace() ? caller_outside_libraries(error.backtrace()->get()) : "";
    throw Error(Status(status.code(), str_cat(in_words(), called_with(call, place_), ": ", status.message(),
                                              caller.empty() ? "" : str_cat(" (in ", caller, ")"))));
  }
}

void TracedFunction::Entry::warn_of_lost_writes() {
  const auto written = std::find(traced.written.begin(), traced.written.end(), true);
  if (written == traced.written.end() || told_of_lost_writes.exchange(true)) return;
  MUSTER_LOG(warning) << "function \"" << traced.program.name << "\" writes to its argument "
                      << written - traced.written.begin()
                      << ": another process does so in a copy, and the caller's tensor stays as it is; return what "
                         "the caller needs, or clone the argument first";
}

void TracedFunction::warn_of_changes(Entry& entry) const {
  if (entry.told_of_changes.load(std::memory_order_relaxed)) return;
  for (const CapturedTensor& captured : entry.traced.captured) {
    const std::string change = captured.change();
    if (change.empty()) continue;
    if (entry.told_of_changes.exchange(true)) return;
    MUSTER_LOG(warning) << in_words() << ": a tensor (" << captured.spec().to_string() << ") that it captures "
                        << change << " after the trace, but the program has the elements of that time. " << kFrozen;
    return;
  }
  for (const auto& variable : entry.traced.variables) {
    if (!variable->adopted_was_changed()) continue;
    // Perhaps only by a trace of another thread.
    if (const auto quiet = try_between_traces(); !quiet || !variable->adopted_was_changed()) continue;
    if (entry.told_of_changes.exchange(true)) return;
    MUSTER_LOG(warning)
        << in_words() << ": the module's tensor that stands for variable \"" << variable->options.name
        << "\" was written to since it was adopted. The function uses the variable, which has its own "
           "value: read the module into its variables by muster::adopted(net).read_module(), or change the "
           "module before it is adopted";
    return;
  }
}

void TracedFunction::warn_of_frozen(const TracedProgram& traced) {
  if (told_of_frozen_) return;
  size_t parameters = 0;
  TensorSpec largest;
  for (const CapturedTensor& captured : traced.captured) {
    if (!captured.requires_grad()) continue;
    if (parameters++ == 0 || captured.spec().bytes() > largest.bytes()) largest = captured.spec();
  }
  if (parameters > 0) {
    told_of_frozen_ = true;
    MUSTER_LOG(warning) << in_words() << ": captures " << parameters
                        << " tensors that require gradients and are no variables, such as " << largest.to_string()
                        << ": they stay as they are now; muster::adopt the module that they belong to, or, if that is "
                           "meant, let them need no gradients (requires_grad_(false))";
  }
  if (!traced.kept_outside.empty()) {
    told_of_frozen_ = true;
    MUSTER_LOG(warning) << in_words() << ": " << traced.kept_outside
                        << ". What a function does besides its results and its variables it does once, when it is "
                           "traced: return the tensor, keep it in a muster::Variable, and use Muster's optimizers";
  }
}

std::shared_ptr<TracedFunction::Entry> TracedFunction::take_unused() {
  if (entry_count_ < kMostEntries) return nullptr;
  auto earlier = [](const Known& a, const Known& b) { return a.last_use < b.last_use; };
  auto oldest_of = [&](auto& of_signature) {
    return std::min_element(of_signature.second.begin(), of_signature.second.end(), earlier);
  };
  auto signature = std::min_element(entries_.begin(), entries_.end(),
                                    [&](auto& a, auto& b) { return earlier(*oldest_of(a), *oldest_of(b)); });
  auto oldest = oldest_of(*signature);
  std::shared_ptr<Entry> taken = std::move(oldest->entry);
  signature->second.erase(oldest);
  if (signature->second.empty()) entries_.erase(signature);
  --entry_count_;
  return taken;
}

void TracedFunction::warn_if_often(const std::vector<std::string>& descriptions, const ElementSpecs& elements) {
  if (options_.many_shapes) return;
  if (stats_.retraces < kOften || (stats_.retraces & (stats_.retraces - 1)) != 0) {
    if (stats_.retraces != kOften) return;
  }
  std::string change = "the parts of its arguments changed";
  for (size_t i = 0; i < descriptions.size() && descriptions.size() == last_descriptions_.size(); ++i) {
    if (descriptions[i] == last_descriptions_[i]) continue;
    change = str_cat(descriptions[i], " was ", last_descriptions_[i].substr(last_descriptions_[i].find(": ") + 2),
                     " before");
    break;
  }
  if (!elements.empty()) {
    change = str_cat("it takes elements ", describe_elements(elements), " and took ", describe_elements(last_elements_),
                     " before");
  }
  MUSTER_LOG(warning) << "function \"" << name() << "\" was traced " << stats_.misses << " times: " << change
                      << "; tracing is slow, so pass what changes as a tensor of one shape";
}

std::string place_in_source(const std::source_location& where) {
  const std::string_view file = where.file_name();
  return file.empty() ? "" : str_cat(file.substr(file.rfind('/') + 1), ":", where.line());
}

void refuse_variables_of_strategies(const TracedProgram& traced, const char* what_it_cannot) {
  for (const auto& variable : traced.variables) {
    if (!variable->home) continue;
    const std::string& device = variable->options.device;
    throw failed_precondition("function \"", traced.program.name, "\" uses variable \"", variable->options.name,
                              "\", which a strategy has made ", device.empty() ? "at the workers" : "on " + device,
                              ": it cannot be ", what_it_cannot, "; give it to ClusterCoordinator::schedule");
  }
}

std::vector<at::Tensor> TracedFunction::run(Entry& entry, std::vector<at::Tensor> tensors, const RunOptions& options) {
  LocalWorker& worker = local_worker();
  ProgramHandle handle;
  {
    absl::MutexLock lock(&entry.mu);
    if (!entry.handle) {
      refuse_variables_of_strategies(entry.traced, "called in this process");
      entry.handle = worker.register_program(entry.traced.program);
    }
    handle = *entry.handle;
  }
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (entry.traced.written[i]) written.push_back(tensors[i]);
    if (entry.traced.compact[i] && tensors[i].storage_offset() != 0) tensors[i] = from_its_start(tensors[i]);
  }
  std::vector<at::Tensor> results = worker.run(handle, std::move(tensors), options);
  // As libtorch's own ops do: autograd and whoever has captured it look whether it is what it was.
  for (const at::Tensor& tensor : written) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
  return results;
}

}  // namespace muster
