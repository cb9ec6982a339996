#include "muster/data/dataset.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "muster/base/status.h"
#include "muster/data/dataset_node.h"
#include "muster/graph/device_spec.h"
#include "muster/runtime/memory/readable.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {
namespace {

int64_t at_least(int64_t least, int64_t given, const char* what) {
  if (given < least) throw invalid_argument(what, " ", given, ", expected at least ", least);
  return given;
}

// Nobody's gradients go through a dataset, and it has its own copy of what somebody may still write to.
std::vector<at::Tensor> checked(const char* op, const std::vector<at::Tensor>& tensors) {
  PlainTensors plain;
  if (tensors.empty()) throw invalid_argument(op, ": no tensors, expected at least one");
  std::vector<at::Tensor> detached;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (const std::string why = why_unreadable(tensors[i]); !why.empty()) {
      throw invalid_argument(op, ": tensor ", i, " ", why);
    }
    dtype_of(tensors[i].scalar_type());  // throws for those that cannot be sent
    const bool ours = tensors[i].use_count() == 1 && tensors[i].storage().use_count() == 1;
    detached.push_back(ours ? tensors[i].detach() : copy_of(tensors[i]));
  }
  return detached;
}

}  // namespace

Dataset Dataset::range(int64_t end) { return range(0, end); }

Dataset Dataset::range(int64_t begin, int64_t end, int64_t step) {
  if (step == 0) throw invalid_argument("range: from ", begin, " to ", end, " in steps of 0, expected another step");
  return dataset_of(RangeOp{begin, end, step});
}

Dataset Dataset::tensors(std::vector<at::Tensor> tensors) {
  tensors = checked("tensors", tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].dim() == 0) {
      throw invalid_argument("tensors: tensor ", i, " is the scalar ", spec_of(tensors[i]).to_string(),
                             ", expected a first dimension to slice; from_tensors takes it as it is");
    }
    if (tensors[i].size(0) != tensors[0].size(0)) {
      throw invalid_argument("tensors: tensor ", i, " has ", tensors[i].size(0), " slices, but tensor 0 has ",
                             tensors[0].size(0), "; expected the same first dimension for all");
    }
  }
  return dataset_of(SlicesOp{std::move(tensors)});
}

Dataset Dataset::from_tensors(Element element) { return dataset_of(WholeOp{checked("from_tensors", element)}); }

Dataset Dataset::generator(std::function<Generator()> start) {
  if (!start) throw invalid_argument("generator: an empty function, expected one that returns a generator");
  return dataset_of(GeneratorOp{std::move(start)});
}

Dataset Dataset::synthetic_digits(int64_t count, uint64_t seed) {
  return dataset_of(DigitsOp{at_least(0, count, "synthetic_digits: count"), seed});
}

Dataset Dataset::zip(const std::vector<Dataset>& datasets) {
  if (datasets.empty()) throw invalid_argument("zip: no datasets, expected at least one");
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < datasets.size(); ++i) {
    for (const std::string& name : datasets[i].column_names()) {
      const auto [other, is_new] = places.emplace(name, i);
      if (is_new || other->second == i) continue;
      throw invalid_argument("zip: datasets ", other->second, " and ", i, " both have a column \"", name,
                             "\", expected names that differ: select others, or let map name what it returns");
    }
  }
  return dataset_of(ZipOp{}, nodes_of(datasets));
}

Dataset Dataset::map_with(ElementFunction function, Parallel parallel, std::vector<std::string> columns) const {
  if (parallel.threads != kAutoThreads) at_least(1, parallel.threads, "map: threads");
  return dataset_of(FunctionOp{.filters = false,
                               .parallel = parallel,
                               .traces = std::make_shared<ElementTraces>("map", std::move(function)),
                               .names = std::move(columns)},
                    {node_});
}

Dataset Dataset::filter_with(ElementFunction function) const {
  return dataset_of(
      FunctionOp{.filters = true, .traces = std::make_shared<ElementTraces>("filter", std::move(function))}, {node_});
}

Dataset Dataset::batch(int64_t size, bool drop_remainder) const {
  return dataset_of(BatchOp{at_least(1, size, "batch: size"), drop_remainder}, {node_});
}

Dataset Dataset::padded_batch(int64_t size, bool drop_remainder, double padding) const {
  return dataset_of(PaddedBatchOp{at_least(1, size, "padded_batch: size"), drop_remainder, padding}, {node_});
}

Dataset Dataset::bucket_by_length(int64_t column, std::vector<int64_t> boundaries, std::vector<int64_t> batches,
                                  bool drop_remainder, double padding) const {
  if (boundaries.empty() || batches.size() != boundaries.size() + 1) {
    throw invalid_argument("bucket_by_length: ", boundaries.size(), " boundaries and ", batches.size(),
                           " sizes of batches, expected at least one boundary, and one size more");
  }
  if (std::ranges::adjacent_find(boundaries, std::greater_equal<>()) != boundaries.end()) {
    throw invalid_argument("bucket_by_length: the boundaries do not ascend");
  }
  for (const int64_t size : batches) at_least(1, size, "bucket_by_length: size of a batch");
  at_least(0, column, "bucket_by_length: column");
  return dataset_of(BucketOp{column, std::move(boundaries), std::move(batches), drop_remainder, padding}, {node_});
}

Dataset Dataset::unbatch() const { return dataset_of(UnbatchOp{}, {node_}); }

Dataset Dataset::enumerate(int64_t first) const { return dataset_of(EnumerateOp{first}, {node_}); }

Dataset Dataset::window(int64_t size, int64_t shift, bool drop_remainder) const {
  at_least(1, size, "window: size");
  return dataset_of(WindowOp{size, at_least(0, shift, "window: shift") == 0 ? size : shift, drop_remainder}, {node_});
}

Dataset Dataset::sample(const std::vector<Dataset>& datasets, std::vector<double> weights,
                        std::optional<uint64_t> seed) {
  if (weights.empty()) weights.assign(datasets.size(), 1.0);
  double sum = 0;
  for (const double weight : weights) sum += weight >= 0 ? weight : NAN;
  if (datasets.empty() || weights.size() != datasets.size() || !(sum > 0) || std::isinf(sum)) {
    throw invalid_argument("sample: ", datasets.size(), " datasets and ", weights.size(),
                           " weights, expected at least one dataset and a weight of at least 0 for each, not all 0");
  }
  return dataset_of(SampleOp{std::move(weights), seed}, nodes_with_same_columns("sample", datasets));
}

Dataset Dataset::shuffle(int64_t buffer, std::optional<uint64_t> seed, bool reshuffle_each_iteration) const {
  return dataset_of(ShuffleOp{at_least(1, buffer, "shuffle: buffer"), seed, reshuffle_each_iteration}, {node_});
}

Dataset Dataset::repeat(std::optional<int64_t> count) const {
  if (count) at_least(0, *count, "repeat: count");
  return dataset_of(RepeatOp{count}, {node_});
}

Dataset Dataset::take(int64_t count) const { return dataset_of(TakeOp{at_least(0, count, "take: count")}, {node_}); }

Dataset Dataset::skip(int64_t count) const { return dataset_of(SkipOp{at_least(0, count, "skip: count")}, {node_}); }

Dataset Dataset::shard(int64_t num_shards, int64_t index) const {
  if (num_shards < 1 || index < 0 || index >= num_shards) {
    throw invalid_argument("shard: index ", index, " of ", num_shards,
                           " shards, expected at least one shard and an index from 0 to one less than the shards");
  }
  return dataset_of(ShardOp{num_shards, index}, {node_});
}

Dataset Dataset::shard(const InputContext& context) const {
  return shard(context.num_input_pipelines, context.input_pipeline_id);
}

Dataset Dataset::prefetch(int64_t count) const {
  return dataset_of(PrefetchOp{at_least(1, count, "prefetch: count")}, {node_});
}

Dataset Dataset::prefetch(int64_t count, const std::string& device) const {
  at_least(1, count, "prefetch: count");
  if (!DeviceSpec::parse(device).type)
    throw invalid_argument("prefetch: device \"", device, "\", expected one like \"GPU:0\"");
  return dataset_of(PrefetchOp{count, device}, {node_});
}

Dataset Dataset::cache() const { return dataset_of(CacheOp{}, {node_}); }

Dataset Dataset::cache(const std::string& path) const {
  if (path.empty() || path.find('\0') != std::string::npos)
    throw invalid_argument("cache: an empty path, expected a file");
  return dataset_of(CacheOp{path}, {node_});
}

std::vector<TensorSpec> Dataset::element_spec() const { return node_->element_spec(); }

Iterator Dataset::iterator() const {
  std::unique_ptr<ElementSource> source = open(local_worker());
  return iterator_over(std::move(source), pattern());
}

Iterator Dataset::pattern() const {
  return {.specs = numbers_of(element_spec()),
          .names = node_->names().names,
          .labels = static_cast<int64_t>(node_->names().labels)};
}

namespace {

std::shared_ptr<const DatasetNode> seeded_node(const DatasetNode& node, uint64_t& seed) {
  DatasetNode::Inputs inputs;
  for (const auto& input : node.inputs()) inputs.push_back(seeded_node(*input, seed));
  DatasetOp op = node.op();
  if (auto* shuffle = std::get_if<ShuffleOp>(&op); shuffle != nullptr && !shuffle->seed) shuffle->seed = seed++;
  if (auto* sample = std::get_if<SampleOp>(&op); sample != nullptr && !sample->seed) sample->seed = seed++;
  return std::make_shared<const DatasetNode>(std::move(op), std::move(inputs));
}

}  // namespace

Dataset seeded(const Dataset& dataset, uint64_t seed) { return Dataset(seeded_node(*dataset.node(), seed)); }

}  // namespace muster
