#include "muster/trace/traced_function.h"

#include <ATen/Context.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <atomic>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/runtime/local_worker.h"
#include "muster/runtime/tensors.h"

namespace muster {
namespace {

constexpr int64_t kOften = 5;  // retraces
constexpr int kDeepest = 256;

thread_local int inlined_depth = 0;

// The same memory as a storage of its own, so that offsets count from the tensor's first element.
at::Tensor from_its_start(const at::Tensor& tensor) {
  PlainTensors plain;
  return at::from_blob(
      tensor.mutable_data_ptr(), tensor.sizes(), tensor.strides(), [tensor](void*) {},
      tensor.options().requires_grad(false), tensor.device());
}

uint64_t next_seed() {
  static std::atomic<uint64_t> functions{0};
  return step_seed(at::globalContext().defaultGenerator(at::kCPU).current_seed(), functions.fetch_add(1), 0);
}

}  // namespace

TracedFunction::Inlined::Inlined(const TracedFunction& function) {
  if (inlined_depth >= kDeepest) {
    throw invalid_argument("function \"", function.name(), "\" calls itself more than ", kDeepest,
                           " deep while it is traced; its recursion must end by a plain C++ value");
  }
  ++inlined_depth;
}

TracedFunction::Inlined::~Inlined() { --inlined_depth; }

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

std::shared_ptr<TracedFunction::Entry> TracedFunction::entry(const Signature& signature,
                                                             const std::vector<at::Tensor>& tensors, const Call& call,
                                                             const ElementSpecs& elements) {
  auto known = [&]() -> std::shared_ptr<Entry> {
    absl::MutexLock lock(&mu_);
    auto it = entries_.find(signature);
    if (it == entries_.end()) return nullptr;
    ++stats_.hits;
    it->second.last_use = stats_.hits + stats_.misses;
    return it->second.entry;
  };
  if (auto found = known()) return found;
  absl::MutexLock one_at_a_time(&tracing_);
  if (auto found = known()) return found;
  {
    absl::MutexLock lock(&mu_);
    ++stats_.misses;
    if (!entries_.empty()) {
      ++stats_.retraces;
      warn_if_often(call.descriptions(), elements);
    }
    last_descriptions_ = call.descriptions();
    if (!options_.seed) options_.seed = next_seed();
  }
  const LocalDevices& devices = local_worker().devices();
  const bool portable = options_.portable.value_or(!devices.device(devices.default_name()).is_cpu());
  TracedProgram traced =
      trace(call.function, tensors,
            {.name = name(), .seed = *options_.seed, .place = place_, .portable = portable, .elements = elements});
  auto entry = std::make_shared<Entry>(std::move(traced), call.result());
  if (!elements.empty() && entry->elements != elements) {
    throw invalid_argument("function \"", name(), "\" was traced for ", describe_elements(elements),
                           " but then takes other elements: ", describe_elements(entry->elements),
                           "; which elements it takes must not depend on their shapes");
  }
  std::shared_ptr<Entry> unused;
  absl::MutexLock lock(&mu_);
  last_elements_ = entry->elements;
  unused = take_unused();
  entries_.emplace(signature, Known{entry, stats_.hits + stats_.misses});
  return entry;
}

std::shared_ptr<TracedFunction::Entry> TracedFunction::take_unused() {
  if (entries_.size() < kMostEntries) return nullptr;
  auto oldest = std::min_element(entries_.begin(), entries_.end(),
                                 [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; });
  std::shared_ptr<Entry> taken = std::move(oldest->second.entry);
  entries_.erase(oldest);
  return taken;
}

void TracedFunction::warn_if_often(const std::vector<std::string>& descriptions, const ElementSpecs& elements) {
  if (stats_.retraces < kOften || (stats_.retraces & (stats_.retraces - 1)) != 0) {
    if (stats_.retraces != kOften) return;
  }
  std::string change = "the number of its arguments changed";
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

void TracedFunction::check_local(const TracedProgram& traced) const {
  for (const auto& variable : traced.variables) {
    if (!variable->home) continue;
    const std::string& device = variable->options.device;
    throw failed_precondition("function \"", name(), "\" uses variable \"", variable->options.name, "\", which lives ",
                              device.empty() ? "at the workers" : "on " + device,
                              ": it cannot be called in this process; give it to ClusterCoordinator::schedule");
  }
}

std::vector<at::Tensor> TracedFunction::run(Entry& entry, std::vector<at::Tensor> tensors,
                                            const RunOptions& options) const {
  LocalWorker& worker = local_worker();
  ProgramHandle handle;
  {
    absl::MutexLock lock(&entry.mu);
    if (!entry.handle) {
      check_local(entry.traced);
      entry.handle = worker.register_program(entry.traced.program);
    }
    handle = *entry.handle;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (entry.traced.compact[i] && tensors[i].storage_offset() != 0) tensors[i] = from_its_start(tensors[i]);
  }
  return worker.run(handle, std::move(tensors), options);
}

}  // namespace muster
