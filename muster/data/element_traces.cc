#include "muster/data/element_traces.h"

#include <ATen/ops/zeros.h>
#include <absl/strings/str_join.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <string_view>
#include <type_traits>

#include "muster/base/status.h"
#include "muster/data/dataset_node.h"
#include "muster/graph/serialize.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/trace/tracer/dispatcher_hook.h"

namespace muster {
namespace {

constexpr size_t kLookedAt = 32;                          // elements, to learn which shapes there are
constexpr std::array<int64_t, 3> kSmallBatches{1, 2, 3};  // tried for the last, smaller one
constexpr int64_t kLargestTried = 16 << 20;               // bytes of an element that is made up

// Elements are made on the CPU, whatever the default device of the task is, unless the function asks for another one.
void prefer_cpu(Program& program) {
  const int32_t cpu = program.intern_device("/device:CPU:0");
  for (ProgramArgument& argument : program.arguments) {
    if (argument.device == 0) argument.device = cpu;
  }
  for (Instruction& instruction : program.instructions) {
    if (instruction.device == 0) instruction.device = cpu;
  }
  for (Program& body : program.bodies) prefer_cpu(body);
}

// As functions get them: an unusual memory layout would mean another trace.
Element plain_copies(const Element& element) {
  Untraced untraced;
  PlainTensors plain;
  Element contiguous;
  // Copies: tensors that share memory would be one argument of a function that writes to them.
  for (const at::Tensor& tensor : element) contiguous.push_back(tensor.clone(at::MemoryFormat::Contiguous));
  return contiguous;
}

at::Tensor zeros_like(const TensorSpec& spec) {
  Untraced untraced;
  PlainTensors plain;
  return at::zeros(spec.sizes, at::TensorOptions(scalar_type_of(spec.dtype)));
}

// Elements are taken where nothing is to be recorded, and one that needs a trace is met there.
class [[nodiscard]] MayTraceAgain {
  const c10::impl::LocalDispatchKeySet here_ = c10::impl::tls_local_dispatch_key_set();
  c10::impl::ForceDispatchKeyGuard guard_{here_.included_ - kTraceKeys, here_.excluded_ - kTraceKeys};
};

void forget_sizes(Program& program) {
  program.seed = 0;  // each trace has its own
  program.name.clear();
  for (ProgramArgument& argument : program.arguments) {
    argument.any = false;
    std::ranges::fill(argument.spec.sizes, 0);
  }
  for (Program& body : program.bodies) forget_sizes(body);
}

void take_any_sizes(Program& program) {
  for (ProgramArgument& argument : program.arguments) argument.any = true;
  for (Program& body : program.bodies) take_any_sizes(body);
}

// The smallest box around the sizes of all of them. REQUIRES: they are equal without_sizes().
ElementProgram box_around(const ElementPrograms& alike) {
  ElementProgram box = *alike.front();
  if (box.least.empty()) {
    for (const ProgramArgument& argument : box.program.arguments) box.least.push_back(argument.spec.sizes);
  }
  for (const auto& each : alike) {
    for (size_t i = 0; i < box.least.size(); ++i) {
      const std::vector<int64_t>& most = each->program.arguments[i].spec.sizes;
      const std::vector<int64_t>& least = each->least.empty() ? most : each->least[i];
      for (size_t d = 0; d < least.size(); ++d) {
        box.least[i][d] = std::min(box.least[i][d], least[d]);
        int64_t& size = box.program.arguments[i].spec.sizes[d];
        size = std::max(size, most[d]);
      }
    }
  }
  take_any_sizes(box.program);
  return box;
}

bool takes_size(const ElementProgram& program, size_t argument, at::IntArrayRef sizes) {
  const std::vector<int64_t>& most = program.program.arguments[argument].spec.sizes;
  if (program.least.empty()) return sizes == at::IntArrayRef(most);
  if (sizes.size() != most.size()) return false;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] < program.least[argument][d] || sizes[d] > most[d]) return false;
  }
  return true;
}

// Whether `box` would take the elements of `other`, too.
bool meets(const ElementProgram& box, const ElementProgram& other) {
  if (box.program.arguments.size() != other.program.arguments.size()) return false;
  for (size_t i = 0; i < box.program.arguments.size(); ++i) {
    const TensorSpec& spec = other.program.arguments[i].spec;
    if (spec.dtype != box.program.arguments[i].spec.dtype || !takes_size(box, i, spec.sizes)) return false;
  }
  return true;
}

std::vector<ElementPrograms> by_program(const ElementPrograms& traces) {
  std::vector<ElementPrograms> groups;  // in the order of the first of each
  std::map<std::string, size_t> numbers;
  for (const auto& each : traces) {
    const auto [place, added] = numbers.emplace(without_sizes(*each), groups.size());
    if (added) groups.emplace_back();
    groups[place->second].push_back(each);
  }
  return groups;
}

// An element that a function cannot take is an error where it is met, if it is: a filter may leave it out, and no batch
// need be so small.
template <class Make>
std::invoke_result_t<Make> unless_refused(const Make& make) {
  try {
    return make();
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace

bool ElementProgram::takes(const Element& element) const {
  if (element.size() != program.arguments.size()) return false;
  for (size_t i = 0; i < element.size(); ++i) {
    if (element[i].scalar_type() != scalar_type_of(program.arguments[i].spec.dtype)) return false;
    if (!takes_size(*this, i, element[i].sizes())) return false;
  }
  return true;
}

std::string ElementProgram::taken() const {
  std::string text;
  for (size_t i = 0; i < program.arguments.size(); ++i) {
    const TensorSpec& spec = program.arguments[i].spec;
    str_append(text, text.empty() ? "" : ", ", name_of(spec.dtype), "[");
    for (size_t d = 0; d < spec.sizes.size(); ++d) {
      str_append(text, d == 0 ? "" : ", ");
      const int64_t from = least.empty() ? spec.sizes[d] : least[i][d];
      if (from != spec.sizes[d]) str_append(text, from, " to ");
      str_append(text, spec.sizes[d]);
    }
    text += ']';
  }
  return text;
}

// A size that the program depends on is a number in one of its instructions.
std::string without_sizes(const ElementProgram& traced) {
  Program program = traced.program;
  forget_sizes(program);
  std::string text = serialize(program);
  for (const bool compact : traced.compact) text += compact ? '1' : '0';
  return text;
}

ElementPrograms joined(const ElementPrograms& traces) {
  const std::vector<ElementPrograms> groups = by_program(traces);
  ElementPrograms all;
  for (const ElementPrograms& group : groups) {
    auto box = std::make_shared<const ElementProgram>(box_around(group));
    const bool torn = std::ranges::any_of(traces, [&](const auto& other) {
      return std::ranges::find(group, other) == group.end() && meets(*box, *other);
    });
    if (group.size() == 1 || torn) {
      all.insert(all.end(), group.begin(), group.end());
    } else {
      all.push_back(std::move(box));
    }
  }
  return all;
}

ElementTraces::ElementTraces(const char* op, ElementFunction function) : op_(op), function_(std::move(function)) {}
ElementTraces::ElementTraces(const char* op, ElementPrograms got) : op_(op), known_(std::move(got)) {}

std::string ElementTraces::name() const {
  if (function_.trace) return str_cat(op_, " \"", function_.name, "\"");
  absl::MutexLock lock(&mu_);
  return known_.empty() ? op_ : str_cat(op_, " \"", known_.front()->program.name, "\"");
}

std::shared_ptr<const ElementProgram> ElementTraces::known(const Element& element) const {
  for (const auto& each : known_) {
    if (each->takes(element)) return each;
  }
  return nullptr;
}

std::shared_ptr<const ElementProgram> ElementTraces::trace(const Element& element) const {
  MayTraceAgain may_trace;
  std::shared_ptr<TracedFunction::Entry> entry;
  try {
    entry = function_.trace(plain_copies(element));
  } catch (const Error&) {
    throw;  // it names the function
  } catch (const std::exception& error) {
    throw Error(Status(StatusCode::kUnknown, str_cat(name(), ": ", error.what())));
  }
  if (!entry) {
    throw invalid_argument(name(), ": the function cannot take an element of ", element.size(),
                           " tensors: ", describe(specs_of(element)));
  }
  ElementProgram traced{entry->traced.program, entry->traced.compact, entry};
  const size_t outputs = traced.program.outputs.size();
  const bool filters = op_ == std::string_view("filter");
  if (outputs == 0 || (filters && outputs != 1)) {
    throw invalid_argument(name(), ": the function returns ", outputs, " tensors, expected ",
                           filters ? "one bool" : "at least one");
  }
  prefer_cpu(traced.program);
  return std::make_shared<const ElementProgram>(std::move(traced));
}

std::shared_ptr<const ElementProgram> ElementTraces::remember(const Element& element,
                                                              std::shared_ptr<const ElementProgram> traced) {
  absl::MutexLock lock(&mu_);
  if (auto there = known(element)) return there;  // another thread was faster, and its trace is as good
  known_.push_back(traced);
  return traced;
}

std::shared_ptr<const ElementProgram> ElementTraces::first(const DatasetNode& input) {
  {
    absl::MutexLock lock(&mu_);
    if (!known_.empty()) return known_.front();
  }
  if (!function_.trace) return nullptr;
  std::vector<Columns> examples = input.examples(1);
  if (examples.empty()) return nullptr;
  const Element element = tensors_of(std::move(examples.front()), name(), input.names().names);
  return remember(element, trace(element));
}

std::shared_ptr<const ElementProgram> ElementTraces::for_element(const Element& element) {
  {
    absl::MutexLock lock(&mu_);
    if (auto there = known(element)) return there;
    if (!function_.trace) refuse(element);
    if (known_.size() >= kMostShapes) {
      if (!joined_) joined_ = joined(known_);
      for (const auto& each : *joined_) {
        if (each->takes(element)) return each;
      }
      refuse(element);
    }
  }
  return remember(element, trace(element));
}

void ElementTraces::refuse(const Element& element) const {
  if (known_.empty()) {
    throw invalid_argument(op_,
                           ": the dataset was empty where it was described, so its function is not known; here it has ",
                           describe(specs_of(element)));
  }
  constexpr size_t kNamed = 8;
  const ElementPrograms& traces = joined_ ? *joined_ : known_;
  std::string shapes;
  for (size_t i = 0; i < traces.size() && i < kNamed; ++i) str_append(shapes, i == 0 ? "" : " or ", traces[i]->taken());
  if (traces.size() > kNamed) str_append(shapes, " or ", traces.size() - kNamed, " others");
  const std::string& function = function_.trace ? function_.name : known_.front()->program.name;
  throw invalid_argument(op_, " \"", function, "\": an element is ", describe(specs_of(element)),
                         ", but the function was traced for ", shapes,
                         "; make elements alike before it (padded_batch, ExampleFeature::Kind::kPadded), and if it is "
                         "the last, smaller batch, give batch drop_remainder = true");
}

std::shared_ptr<const ElementProgram> ElementTraces::trace_resized(const ElementPrograms& alike, bool larger) const {
  const ElementProgram box = box_around(alike);
  Element element;
  int64_t bytes = 0;
  for (size_t i = 0; i < box.least.size(); ++i) {
    TensorSpec spec = box.program.arguments[i].spec;
    for (size_t d = 0; d < spec.sizes.size(); ++d) {
      if (box.least[i][d] != spec.sizes[d]) spec.sizes[d] = larger ? 4 * spec.sizes[d] + 1 : 1;
    }
    bytes += spec.bytes();
    if (bytes > kLargestTried) return nullptr;
    element.push_back(zeros_like(spec));
  }
  return trace(element);
}

ElementPrograms ElementTraces::to_send(const DatasetNode& input) {
  {
    absl::MutexLock lock(&mu_);
    if (!function_.trace) return known_;
    if (to_send_) return *to_send_;
  }
  if (!first(input)) return {};
  const ElementShapes shapes = shapes_of(input);
  std::vector<Columns> examples;
  if (shapes == ElementShapes::kAny) examples = input.examples(kLookedAt);
  if (shapes != ElementShapes::kAlike) {
    for (const int64_t rows : kSmallBatches) {
      for (Columns& example : unless_refused([&] { return input.examples(1, rows); })) {
        examples.push_back(std::move(example));
      }
    }
  }
  for (Columns& example : examples) {
    unless_refused([&] { return for_element(tensors_of(std::move(example), name(), input.names().names)); });
  }
  ElementPrograms traces;
  {
    absl::MutexLock lock(&mu_);
    traces = known_;
  }
  // What is sent meets sizes that were not among the first: a little smaller, some times larger.
  if (shapes == ElementShapes::kAny) {
    for (const ElementPrograms& alike : by_program(traces)) {
      if (alike.size() == 1) continue;
      for (const bool larger : {false, true}) {
        if (auto traced = unless_refused([&] { return trace_resized(alike, larger); })) {
          if (without_sizes(*traced) == without_sizes(*alike.front())) traces.push_back(std::move(traced));
        }
      }
    }
  }
  absl::MutexLock lock(&mu_);
  if (!to_send_) to_send_ = joined(traces);
  return *to_send_;
}

}  // namespace muster
