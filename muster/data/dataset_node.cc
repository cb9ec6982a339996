#include "muster/data/dataset_node.h"

#include <absl/strings/str_join.h>

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

std::string listed(const std::vector<std::string>& names) {
  return names.empty() ? "it has no names" : "it has " + absl::StrJoin(names, ", ");
}

void check_has(const ColumnNames& known, const std::string& name, const char* step) {
  if (std::ranges::find(known.names, name) != known.names.end()) return;
  throw invalid_argument(step, ": the dataset has no column \"", name, "\"; ", listed(known.names));
}

ColumnNames names_after(const DatasetOp& op, const DatasetNode::Inputs& inputs) {
  if (const auto* parse = std::get_if<ParseOp>(&op)) return {.names = parse->parser->names()};
  if (const auto* numpy = std::get_if<NumpyOp>(&op)) return {.names = numpy->names};
  if (std::holds_alternative<ImageFolderOp>(op)) return {.names = {"image", "label"}, .labelled = true};
  if (const auto* decode = std::get_if<DecodeImagesOp>(&op))
    check_has(inputs[0]->names(), decode->column, "decode_images");
  if (const auto* select = std::get_if<SelectOp>(&op)) {
    for (const std::string& name : select->columns) check_has(inputs[0]->names(), name, "select");
    return {select->columns, select->labelled};
  }
  if (const auto* preprocess = std::get_if<PreprocessOp>(&op)) {
    check_has(inputs[0]->names(), preprocess->column, "preprocess");
    return inputs[0]->names();
  }
  if (std::holds_alternative<EnumerateOp>(op)) {
    ColumnNames all = inputs[0]->names();
    if (!all.names.empty()) all.names.insert(all.names.begin(), "number");
    return all;
  }
  if (std::holds_alternative<ZipOp>(op)) {
    ColumnNames all;
    for (const auto& input : inputs) {
      if (input->names().names.empty()) return {};
      all.names.insert(all.names.end(), input->names().names.begin(), input->names().names.end());
    }
    return all;
  }
  const auto* function = std::get_if<FunctionOp>(&op);
  const bool others = inputs.empty() || (function != nullptr && !function->filters);
  return others ? ColumnNames() : inputs[0]->names();
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
  names_ = names_after(op_, inputs_);
}

std::optional<Columns> DatasetNode::example() const {
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
  std::optional<Columns> first = example();
  if (!first) throw out_of_range("element_spec: the dataset is empty, so there is no element to look at");
  std::vector<TensorSpec> specs = specs_of(tensors_of(*std::move(first), "a dataset"));
  absl::MutexLock lock(&mu_);
  spec_ = std::move(specs);
  return *spec_;
}

std::shared_ptr<const ElementProgram> DatasetNode::program() const {
  const auto& function = std::get<FunctionOp>(op_);
  if (!function.function.trace) return function.got;
  {
    absl::MutexLock lock(&mu_);
    if (program_) return program_;
  }
  std::optional<Columns> first = input().example();
  if (!first) return nullptr;
  auto traced = std::make_shared<const ElementProgram>(
      trace(function, tensors_of(*std::move(first), str_cat(function.name(), " \"", function.function.name, "\""))));
  absl::MutexLock lock(&mu_);
  if (!program_) program_ = std::move(traced);  // else another thread was faster, and its trace is as good
  return program_;
}

std::string describe(const std::vector<TensorSpec>& specs) {
  std::string text;
  for (const TensorSpec& spec : specs) str_append(text, text.empty() ? "" : ", ", spec.to_string());
  return text;
}

Dataset dataset_of(DatasetOp op, DatasetNode::Inputs inputs) {
  return Dataset(std::make_shared<const DatasetNode>(std::move(op), std::move(inputs)));
}

DatasetNode::Inputs nodes_of(const std::vector<Dataset>& datasets) {
  DatasetNode::Inputs nodes;
  for (const Dataset& dataset : datasets) nodes.push_back(dataset.node());
  return nodes;
}

bool ignores_errors(const DatasetNode& node) {
  if (const auto* files = std::get_if<FilesOp>(&node.op())) return files->ignore_errors;
  return std::ranges::any_of(node.inputs(), [](const auto& input) { return ignores_errors(*input); });
}

std::string describe(const Columns& columns) {
  std::string text;
  for (const Column& column : columns) str_append(text, text.empty() ? "" : ", ", column.to_string());
  return text;
}

Element tensors_of(Columns columns, const std::string& who) {
  Element element;
  element.reserve(columns.size());
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].holds_strings()) {
      throw invalid_argument(who, ": column ", i, " of its elements is ", columns[i].to_string(),
                             ", and programs take numbers: turn it into some before (hashing, string_lookup, parse), "
                             "or leave it out (select)");
    }
    element.push_back(columns[i].tensor());
  }
  return element;
}

std::vector<TensorSpec> specs_of(const Element& element) {
  std::vector<TensorSpec> specs;
  for (const at::Tensor& tensor : element) specs.push_back(spec_of(tensor));
  return specs;
}

}  // namespace muster
