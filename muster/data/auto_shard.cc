// The part of a dataset that one of several input pipelines reads.
#include <algorithm>
#include <limits>

#include "muster/base/status.h"
#include "muster/data/dataset_node.h"
#include "muster/data/source.h"

namespace muster {
namespace {

using NodePtr = std::shared_ptr<const DatasetNode>;

NodePtr with_inputs(const DatasetNode& node, DatasetNode::Inputs inputs) {
  DatasetOp op = node.op();
  // Its elements look as before: a function need not be traced for each pipeline.
  if (auto* function = std::get_if<FunctionOp>(&op)) {
    if (std::shared_ptr<const ElementProgram> traced = node.program())
      *function = {function->filters, function->threads, {}, traced};
  }
  return std::make_shared<const DatasetNode>(std::move(op), std::move(inputs));
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
  return with_inputs(node, std::move(inputs));
}

NodePtr by_elements(const NodePtr& node, const ShardOp& part) {
  // What is made ahead is only what is read here.
  if (std::holds_alternative<PrefetchOp>(node->op())) {
    return with_inputs(*node, {by_elements(node->inputs()[0], part)});
  }
  return std::make_shared<const DatasetNode>(part, DatasetNode::Inputs{node});
}

NodePtr by_hints(const DatasetNode& node, const ShardOp& part) {
  DatasetNode::Inputs inputs;
  for (const NodePtr& input : node.inputs()) inputs.push_back(by_hints(*input, part));
  if (!std::holds_alternative<ShardHintOp>(node.op())) return with_inputs(node, std::move(inputs));
  return std::make_shared<const DatasetNode>(part, std::move(inputs));
}

}  // namespace

Dataset Dataset::shard_hint() const { return dataset_of(ShardHintOp{}, {node_}); }

Dataset Dataset::shard(const InputContext& context, ShardPolicy policy) const {
  const Dataset checked = shard(context);  // throws for a context that is none
  const ShardOp part{context.num_input_pipelines, context.input_pipeline_id, /*of_all=*/true};
  if (policy == ShardPolicy::kAuto) {
    const bool files = reads_files_only(*node_) && fewest_files(*node_) >= static_cast<size_t>(part.shards);
    policy = files ? ShardPolicy::kFile : ShardPolicy::kData;
  }
  switch (policy) {
    case ShardPolicy::kFile:
      if (!reads_files_only(*node_)) {
        throw not_found(
            "shard: by files, but not all that this dataset reads are files; ShardPolicy::kData takes every ",
            part.shards, "-th element");
      }
      return Dataset(by_files(*node_, part));
    case ShardPolicy::kData: return Dataset(by_elements(node_, part));
    case ShardPolicy::kHint: return Dataset(by_hints(*node_, {part.shards, part.index}));
    default: return *this;
  }
}

}  // namespace muster
