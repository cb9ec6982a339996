#include "muster/data/dataset_node.h"

#include <algorithm>
#include <atomic>

#include "muster/base/status.h"
#include "muster/data/source.h"
#include "muster/runtime/local_worker.h"
#include "muster/runtime/tensors.h"
#include "muster/trace/dispatcher_hook.h"

namespace muster {
namespace {

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

ElementProgram trace(const FunctionOp& op, const Element& example) {
  const std::shared_ptr<TracedFunction::Entry> entry = op.function.trace(plain_copies(example));
  if (!entry) {
    throw invalid_argument(op.name(), " \"", op.function.name, "\": the function cannot take an element of ",
                           example.size(), " tensors: ", describe(specs_of(example)));
  }
  ElementProgram traced{entry->traced.program, entry->traced.compact, entry};
  const size_t outputs = traced.program.outputs.size();
  if (outputs == 0 || (op.filters && outputs != 1)) {
    throw invalid_argument(op.name(), " \"", op.function.name, "\": the function returns ", outputs,
                           " tensors, expected ", op.filters ? "one bool" : "at least one");
  }
  prefer_cpu(traced.program);
  return traced;
}

}  // namespace

uint64_t RangeOp::count() const {
  if (step > 0 ? begin >= end : begin <= end) return 0;
  // Unsigned, because the distance between two int64 may be larger than one.
  const uint64_t distance = step > 0 ? static_cast<uint64_t>(end) - static_cast<uint64_t>(begin)
                                     : static_cast<uint64_t>(begin) - static_cast<uint64_t>(end);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  return (distance - 1) / stride + 1;
}

DatasetNode::DatasetNode(DatasetOp op, Inputs inputs) : op_(std::move(op)), inputs_(std::move(inputs)) {
  for (const auto& input : inputs_) {
    depth_ = std::max(depth_, input->depth_ + 1);
    nodes_ += input->nodes_;
  }
  if (depth_ > kDeepest || nodes_ > kMostNodes) {
    throw invalid_argument("dataset: ", nodes_, " steps, ", depth_, " after each other; expected at most ", kMostNodes,
                           " and ", kDeepest);
  }
}

std::optional<Element> DatasetNode::example() const {
  const std::atomic<bool> closed{false};
  const std::unique_ptr<Source> source =
      muster::open(*this, {.runner = local_worker(), .closed = closed, .example = true});
  Untraced untraced;  // not before: to open it may mean to trace the functions in it
  return source->next();
}

std::vector<TensorSpec> DatasetNode::element_spec() const {
  {
    absl::MutexLock lock(&mu_);
    if (spec_) return *spec_;
  }
  const std::optional<Element> first = example();
  if (!first) throw out_of_range("element_spec: the dataset is empty, so there is no element to look at");
  absl::MutexLock lock(&mu_);
  spec_ = specs_of(*first);
  return *spec_;
}

std::shared_ptr<const ElementProgram> DatasetNode::program() const {
  const auto& function = std::get<FunctionOp>(op_);
  if (!function.function.trace) return function.got;
  {
    absl::MutexLock lock(&mu_);
    if (program_) return program_;
  }
  const std::optional<Element> first = input().example();
  if (!first) return nullptr;
  auto traced = std::make_shared<const ElementProgram>(trace(function, *first));
  absl::MutexLock lock(&mu_);
  if (!program_) program_ = std::move(traced);  // else another thread was faster, and its trace is as good
  return program_;
}

std::string describe(const std::vector<TensorSpec>& specs) {
  std::string text;
  for (const TensorSpec& spec : specs) str_append(text, text.empty() ? "" : ", ", spec.to_string());
  return text;
}

std::vector<TensorSpec> specs_of(const Element& element) {
  std::vector<TensorSpec> specs;
  for (const at::Tensor& tensor : element) specs.push_back(spec_of(tensor));
  return specs;
}

}  // namespace muster
