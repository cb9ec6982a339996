#include "muster/data/dataset_node.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <atomic>

#include "muster/base/status.h"
#include "muster/data/sources/source.h"
#include "muster/data/stage_times.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/local_worker.h"
#include "muster/trace/tracer/dispatcher_hook.h"

namespace muster {
namespace {

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
  if (const auto* registered = std::get_if<RegisteredOp>(&op)) return {.names = registered->names};
  if (const auto* native = std::get_if<NativeMapOp>(&op)) return {.names = native->names};
  if (std::holds_alternative<ImageFolderOp>(op)) return {.names = {"image", "label"}, .labels = 1};
  if (const auto* decode = std::get_if<DecodeImagesOp>(&op))
    check_has(inputs[0]->names(), decode->column, "decode_images");
  if (const auto* select = std::get_if<SelectOp>(&op)) {
    for (const std::string& name : select->columns) {
      if (!select->names_all) check_has(inputs[0]->names(), name, select->labels > 0 ? "label" : "select");
    }
    return {select->columns, select->labels};
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
  if (const auto* function = std::get_if<FunctionOp>(&op); function != nullptr && !function->filters) {
    return {.names = function->names};
  }
  return inputs.empty() ? ColumnNames() : inputs[0]->names();
}

// What one worker is handed is a part of a round, and another one in each: nothing may take it for the whole.
void check_after_hand_out(const DatasetOp& op, size_t inputs) {
  if (std::holds_alternative<CacheOp>(op)) {
    throw invalid_argument(
        "cache: the dataset is handed out in parts (ShardPolicy::kDynamic), and a cache would keep those of one "
        "worker's "
        "first round for all others; leave it out, or shard by ShardPolicy::kFile, which makes a cache for each "
        "worker");
  }
  const bool counts =
      std::holds_alternative<TakeOp>(op) || std::holds_alternative<SkipOp>(op) || std::holds_alternative<ShardOp>(op);
  if (counts) {
    throw invalid_argument(
        "dataset: take, skip and shard count elements, and a dataset that is handed out in parts "
        "(ShardPolicy::kDynamic) "
        "has no first one; leave them out, or shard by ShardPolicy::kFile or kData");
  }
  if (inputs > 1) {
    throw invalid_argument(
        "dataset: one of ", inputs,
        " datasets is handed out in parts (ShardPolicy::kDynamic), and only a dataset with one "
        "source can be; name all files in one source, or make a dataset of each and take from both in the function");
  }
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
    if (is_handed_out(*input)) check_after_hand_out(op_, inputs_.size());
    if (std::holds_alternative<FromOp>(input->op())) {
      throw invalid_argument("dataset: from(position) is of a whole dataset; expected it to be the last step");
    }
    depth_ = std::max(depth_, input->depth_ + 1);
    nodes_ += input->nodes_;
  }
  if (depth_ > kDeepest || nodes_ > kMostNodes) {
    throw invalid_argument("dataset: ", nodes_, " steps, ", depth_, " after each other; expected at most ", kMostNodes,
                           " and ", kDeepest);
  }
  names_ = names_after(op_, inputs_);
  const bool on_device = std::ranges::any_of(inputs_, [](const auto& input) { return input->on_device_; });
  const bool passes_devices = passes_on(op_) && !std::holds_alternative<ShuffleOp>(op_);
  const bool joins = std::holds_alternative<ZipOp>(op_) || std::holds_alternative<ConcatenateOp>(op_) ||
                     std::holds_alternative<SampleOp>(op_);
  if (on_device && !passes_devices && !joins) {
    throw invalid_argument("prefetch: only steps that hand elements on may follow one to a device; expected it last");
  }
  const auto* prefetch = std::get_if<PrefetchOp>(&op_);
  on_device_ = on_device || (prefetch != nullptr && !prefetch->device.empty());
}

std::vector<Columns> DatasetNode::examples(size_t most, std::optional<int64_t> rows) const {
  constexpr size_t kEnough = 64 << 20;  // bytes
  const std::atomic<bool> closed{false};
  const std::unique_ptr<Source> source =
      muster::open(*this, {.runner = local_worker(), .closed = closed, .example = true, .rows = rows});
  Untraced untraced;  // not before: to open it may mean to trace the functions in it
  std::vector<Columns> found;
  size_t bytes = 0;
  while (found.size() < most && bytes < kEnough) {
    try {
      std::optional<Columns> element = source->next();
      if (!element) break;
      for (const Column& column : *element) {
        bytes += column.holds_strings() ? column.strings().bytes() : column.tensor().nbytes();
      }
      found.push_back(*std::move(element));
    } catch (const std::exception&) {
      if (found.empty()) throw;
      break;  // whoever reads so far will see
    }
  }
  return found;
}

std::vector<TensorSpec> DatasetNode::element_spec() const {
  {
    absl::MutexLock lock(&mu_);
    if (spec_) return *spec_;
  }
  std::vector<Columns> first = examples(1);
  if (first.empty()) {
    const std::string stages = stages_of(*this);
    throw out_of_range("element_spec: the dataset ", stages.empty() ? "" : str_cat("(", stages, ") "),
                       "is empty, so there is no element to look at; expected one at least: are its files or tensors "
                       "empty, or is all left out by take(), skip(), shard() or batch(n, drop_remainder)?");
  }
  std::vector<TensorSpec> specs = specs_of(tensors_of(std::move(first.front()), "a dataset", names_.names));
  absl::MutexLock lock(&mu_);
  spec_ = std::move(specs);
  return *spec_;
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

DatasetNode::Inputs nodes_with_same_columns(const char* step, const std::vector<Dataset>& datasets) {
  DatasetNode::Inputs nodes = nodes_of(datasets);
  const ColumnNames& first = nodes.at(0)->names();
  for (size_t i = 1; i < nodes.size(); ++i) {
    const std::vector<std::string>& own = nodes[i]->names().names;
    if (own.empty() || first.names.empty() || own == first.names) continue;
    if (!std::ranges::is_permutation(own, first.names)) {
      throw invalid_argument(step, ": dataset ", i, " has the columns ", absl::StrJoin(own, ", "),
                             ", but dataset 0 has ", absl::StrJoin(first.names, ", "), "; expected the same names");
    }
    nodes[i] = std::make_shared<const DatasetNode>(SelectOp{.columns = first.names, .labels = first.labels},
                                                   DatasetNode::Inputs{nodes[i]});
  }
  return nodes;
}

bool passes_on(const DatasetOp& op) {
  return std::holds_alternative<ShuffleOp>(op) || std::holds_alternative<RepeatOp>(op) ||
         std::holds_alternative<TakeOp>(op) || std::holds_alternative<SkipOp>(op) ||
         std::holds_alternative<ShardOp>(op) || std::holds_alternative<ShardHintOp>(op) ||
         std::holds_alternative<HandOutOp>(op) || std::holds_alternative<PrefetchOp>(op);
}

bool ignores_errors(const DatasetNode& node) {
  return any_step(node, [](const DatasetNode& step) {
    const auto* files = std::get_if<FilesOp>(&step.op());
    return files != nullptr && files->ignore_errors;
  });
}

bool is_generator(const DatasetNode& step) {
  return std::holds_alternative<GeneratorOp>(step.op()) ||
         (std::holds_alternative<RegisteredOp>(step.op()) && step.inputs().empty());
}

bool has_generator(const DatasetNode& node) { return any_step(node, is_generator); }

bool is_handed_out(const DatasetNode& node) {
  return any_step(node, [](const DatasetNode& step) { return std::holds_alternative<HandOutOp>(step.op()); });
}

std::string describe(const Columns& columns) {
  std::string text;
  for (const Column& column : columns) str_append(text, text.empty() ? "" : ", ", column.to_string());
  return text;
}

Element tensors_of(Columns columns, const std::string& who, const std::vector<std::string>& names) {
  Element element;
  element.reserve(columns.size());
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].holds_strings()) {
      const std::string column = i < names.size() ? str_cat("\"", names[i], "\"") : str_cat(i);
      throw invalid_argument(who, ": column ", column, " of its elements is ", columns[i].to_string(),
                             ", and programs take numbers: turn it into some before (hashing, string_lookup, of labels "
                             "with .num_oov_indices = 0, or parse), or leave it out (select)");
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
