#include "muster/data/auto_shard.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <limits>

#include "muster/base/status.h"
#include "muster/data/dataset_node.h"
#include "muster/data/sources/source.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

using NodePtr = std::shared_ptr<const DatasetNode>;

NodePtr with_inputs(const DatasetNode& node, DatasetNode::Inputs inputs) {
  return std::make_shared<const DatasetNode>(node.op(), std::move(inputs));
}

// The same for inputs that are a part of those that it has.
NodePtr with_parts(const DatasetNode& node, DatasetNode::Inputs parts, const ShardOp& part) {
  const auto* cache = std::get_if<CacheOp>(&node.op());
  if (cache == nullptr || cache->path.empty()) return with_inputs(node, std::move(parts));
  CacheOp mine{absl::StrFormat("%s-%05d-of-%05d", cache->path, part.index, part.shards)};
  return std::make_shared<const DatasetNode>(std::move(mine), std::move(parts));
}

// Every source of it is a list of files.
bool reads_files_only(const DatasetNode& node) {
  if (node.inputs().empty()) {
    return std::holds_alternative<FilesOp>(node.op()) || std::holds_alternative<ImageFolderOp>(node.op());
  }
  for (const NodePtr& input : node.inputs()) {
    if (!reads_files_only(*input)) return false;
  }
  return true;
}

// Of the source that has the fewest. One that cannot be looked at from here has enough: whoever opens it will see.
size_t fewest_files(const DatasetNode& node) {
  size_t fewest = std::numeric_limits<size_t>::max();
  if (const auto* files = std::get_if<FilesOp>(&node.op())) {
    try {
      return record_files(*files).size();
    } catch (const Error&) {
      return fewest;
    }
  }
  for (const NodePtr& input : node.inputs()) fewest = std::min(fewest, fewest_files(*input));
  return fewest;
}

// Of all sources, those of a part and all; nothing if they cannot be counted from here without reading directories.
struct FileCount {
  int64_t part = 0, all = 0;
};
std::optional<FileCount> count_files(const DatasetNode& node, const ShardOp& part) {
  FileCount count;
  if (const auto* files = std::get_if<FilesOp>(&node.op())) {
    try {
      count.all = static_cast<int64_t>(record_files(*files).size());
    } catch (const Error&) {
      return std::nullopt;
    }
    count.part = (count.all - part.index + part.shards - 1) / part.shards;
    return count;
  }
  if (node.inputs().empty()) return std::nullopt;
  for (const NodePtr& input : node.inputs()) {
    const std::optional<FileCount> more = count_files(*input, part);
    if (!more) return std::nullopt;
    count.part += more->part;
    count.all += more->all;
  }
  return count;
}

// "every 3rd"
std::string every_nth(int64_t n) {
  const bool teen = n / 10 % 10 == 1;
  const char* const ending = n % 10 == 1 && !teen   ? "st"
                             : n % 10 == 2 && !teen ? "nd"
                             : n % 10 == 3 && !teen ? "rd"
                                                    : "th";
  return str_cat("every ", n, ending);
}

bool never_ends(const DatasetNode& node) {
  auto inputs_do = [&](auto of) { return of(node.inputs(), [](const NodePtr& input) { return never_ends(*input); }); };
  if (const auto* repeat = std::get_if<RepeatOp>(&node.op())) {
    return !repeat->count || (*repeat->count > 0 && never_ends(node.input()));
  }
  if (node.inputs().empty() || std::holds_alternative<TakeOp>(node.op())) return false;
  return std::holds_alternative<ZipOp>(node.op()) ? inputs_do(std::ranges::all_of) : inputs_do(std::ranges::any_of);
}

template <class... Ops>
bool is_one_of(const DatasetOp& op) {
  return (std::holds_alternative<Ops>(op) || ...);
}

bool is_as_long_each_time(const DatasetNode& node) {
  const DatasetOp& op = node.op();
  if (is_one_of<RangeOp, SlicesOp, WholeOp, DigitsOp, CacheOp>(op)) return true;
  const auto* function = std::get_if<FunctionOp>(&op);
  const bool counts_its_input =
      is_one_of<BatchOp, PaddedBatchOp, EnumerateOp, WindowOp, ShuffleOp, RepeatOp, TakeOp, SkipOp, ShardOp,
                ShardHintOp, ZipOp, ConcatenateOp, PrefetchOp, SelectOp, PreprocessOp, ParseOp>(op) ||
      (function != nullptr && !function->filters);
  return counts_its_input &&
         std::ranges::all_of(node.inputs(), [](const NodePtr& input) { return is_as_long_each_time(*input); });
}

NodePtr by_files(const DatasetNode& node, const ShardOp& part) {
  if (const auto* files = std::get_if<FilesOp>(&node.op())) {
    FilesOp mine = *files;
    mine.part = mine.part.part(part.shards, part.index);
    return std::make_shared<const DatasetNode>(std::move(mine), DatasetNode::Inputs());
  }
  if (const auto* images = std::get_if<ImageFolderOp>(&node.op())) {
    ImageFolderOp mine = *images;
    mine.part = mine.part.part(part.shards, part.index);
    return std::make_shared<const DatasetNode>(std::move(mine), DatasetNode::Inputs());
  }
  DatasetNode::Inputs inputs;
  for (const NodePtr& input : node.inputs()) inputs.push_back(by_files(*input, part));
  return with_parts(node, std::move(inputs), part);
}

NodePtr by_elements(const NodePtr& node, const ShardOp& part) {
  // What is made ahead is only what is read here.
  if (std::holds_alternative<PrefetchOp>(node->op())) {
    return with_inputs(*node, {by_elements(node->inputs()[0], part)});
  }
  return std::make_shared<const DatasetNode>(part, DatasetNode::Inputs{node});
}

bool has_hint(const DatasetNode& node) {
  return any_step(node, [](const DatasetNode& step) { return std::holds_alternative<ShardHintOp>(step.op()); });
}

NodePtr by_hints(const NodePtr& node, const ShardOp& part) {
  if (!has_hint(*node)) return node;
  DatasetNode::Inputs inputs;
  for (const NodePtr& input : node->inputs()) inputs.push_back(by_hints(input, part));
  if (!std::holds_alternative<ShardHintOp>(node->op())) return with_parts(*node, std::move(inputs), part);
  return std::make_shared<const DatasetNode>(part, std::move(inputs));
}

// How many elements of its input are as many as `multiple` of what the step makes; 1 if that differs from one to
// another.
int64_t before_step(const DatasetOp& op, int64_t multiple) {
  const auto of_batch = [multiple](int64_t size) {
    int64_t rows = 0;
    return __builtin_mul_overflow(multiple, size, &rows) ? size : rows;
  };
  if (const auto* batch = std::get_if<BatchOp>(&op)) return of_batch(batch->size);
  if (const auto* batch = std::get_if<PaddedBatchOp>(&op)) return of_batch(batch->size);
  const auto* function = std::get_if<FunctionOp>(&op);
  const bool one_by_one = is_one_of<EnumerateOp, ShuffleOp, RepeatOp, ShardHintOp, PrefetchOp, SelectOp, PreprocessOp,
                                    ParseOp, DecodeImagesOp, NativeMapOp, RegisteredOp>(op) ||
                          (function != nullptr && !function->filters);
  return one_by_one ? multiple : 1;
}

// Its one source becomes one that is handed out, in ranges of `multiple` elements: those of whole batches, or each
// worker would be left with the beginning of one.
NodePtr by_parts(const NodePtr& node, int64_t multiple = 1) {
  if (node->inputs().empty()) {
    if (is_generator(*node)) throw invalid_argument("shard: what C++ makes has no parts that could be handed out");
    return std::make_shared<const DatasetNode>(HandOutOp{multiple}, DatasetNode::Inputs{node});
  }
  DatasetNode::Inputs inputs;
  multiple = before_step(node->op(), multiple);
  for (const NodePtr& input : node->inputs()) inputs.push_back(by_parts(input, multiple));
  return with_inputs(*node, std::move(inputs));
}

}  // namespace

bool Dataset::handed_out() const { return is_handed_out(*node_); }

Dataset Dataset::shard_hint() const { return dataset_of(ShardHintOp{}, {node_}); }

Dataset Dataset::shard(const InputContext& context, ShardPolicy policy) const {
  const Dataset checked = shard(context);  // throws for a context that is none
  const ShardOp part{context.num_input_pipelines, context.input_pipeline_id, /*of_all=*/true};
  switch (chosen_policy(*this, context, policy)) {
    case ShardPolicy::kFile: return Dataset(by_files(*node_, part));
    case ShardPolicy::kData: {
      // The parts are of one order, or some elements would be in several and others in none.
      static const uint64_t seed = random_id();
      return Dataset(by_elements(seeded(*this, seed).node(), part));
    }
    case ShardPolicy::kDynamic: return is_handed_out(*node_) ? *this : Dataset(by_parts(node_));
    case ShardPolicy::kHint: return Dataset(by_hints(node_, {part.shards, part.index}));
    default: return *this;
  }
}

ShardPolicy chosen_policy(const Dataset& dataset, const InputContext& context, ShardPolicy policy) {
  const bool of_files = reads_files_only(*dataset.node());
  if (policy == ShardPolicy::kAuto) {
    const bool enough = of_files && fewest_files(*dataset.node()) >= static_cast<size_t>(context.num_input_pipelines);
    return enough ? ShardPolicy::kFile : ShardPolicy::kData;
  }
  if (policy == ShardPolicy::kFile && !of_files) {
    throw not_found("shard: by files, but not all that this dataset reads are files; ShardPolicy::kData takes every ",
                    context.num_input_pipelines, "-th element");
  }
  return policy;
}

std::string described_part(const Dataset& dataset, const InputContext& context, ShardPolicy policy) {
  const int64_t pipelines = context.num_input_pipelines;
  std::string words = str_cat("worker ", context.input_pipeline_id, " of ", pipelines, " reads ");
  if (policy == ShardPolicy::kHint) {
    return str_cat(words, every_nth(pipelines), " element of each shard_hint()");
  }
  if (policy == ShardPolicy::kData) return words + "all, and takes its rows of each batch";
  if (policy != ShardPolicy::kFile) return words + "all: nothing divides it";
  const std::optional<FileCount> files = count_files(*dataset.node(), {pipelines, context.input_pipeline_id});
  if (!files) return str_cat(words, every_nth(pipelines), " file");
  return str_cat(words, files->part, " of ", files->all, " files (", every_nth(pipelines), ")");
}

bool is_endless(const Dataset& dataset) { return never_ends(*dataset.node()); }

bool keeps_its_length(const Dataset& dataset) { return is_as_long_each_time(*dataset.node()); }

bool has_cache(const Dataset& dataset) {
  return any_step(*dataset.node(), [](const DatasetNode& step) { return std::holds_alternative<CacheOp>(step.op()); });
}

bool has_generator(const Dataset& dataset) { return has_generator(*dataset.node()); }

}  // namespace muster
