#include "muster/distribute/servers/partitioners.h"

#include <absl/strings/str_join.h>

#include <algorithm>

#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

void check_positive(const char* name, int64_t value) {
  if (value < 1) throw invalid_argument("partitioner: ", name, " must be positive, but is ", value);
}

int64_t checked_size(const TensorSpec& spec, int axis) {
  if (axis < 0 || axis >= static_cast<int64_t>(spec.sizes.size())) {
    throw invalid_argument("cannot partition a variable along axis ", axis, " when its shape is only ",
                           spec.to_string());
  }
  return spec.sizes[axis];
}

int64_t ceil_of_quotient(int64_t total, int64_t part) { return total / part + (total % part != 0); }

// One part per axis but for this one. A variable without rows is one part too.
std::vector<int64_t> cut(const TensorSpec& spec, int axis, int64_t parts) {
  std::vector<int64_t> counts(spec.sizes.size(), 1);
  counts[axis] = std::max<int64_t>(1, std::min(parts, spec.sizes[axis]));
  return counts;
}

std::vector<int64_t> cut_fixed(const TensorSpec& spec, int axis, int num_shards) {
  check_positive("num_shards", num_shards);
  checked_size(spec, axis);
  return cut(spec, axis, num_shards);
}

std::vector<int64_t> cut_by_size(const TensorSpec& spec, const VariableAxisSizeOptions& options) {
  check_positive("max_shard_bytes", options.max_shard_bytes);
  check_positive("bytes_per_string", options.bytes_per_string);
  if (options.max_shards) check_positive("max_shards", *options.max_shards);
  const int64_t size = checked_size(spec, options.axis);
  if (spec.elements() == 0) return cut(spec, options.axis, 1);
  const int64_t slices_per_shard = std::max<int64_t>(1, options.max_shard_bytes / (spec.bytes() / size));
  const int64_t parts = ceil_of_quotient(size, slices_per_shard);
  return cut(spec, options.axis, std::min<int64_t>(parts, options.max_shards.value_or(parts)));
}

}  // namespace

std::vector<int64_t> MinSizePartitioner::operator()(const TensorSpec& spec, int axis) const {
  check_positive("min_shard_bytes", min_shard_bytes);
  check_positive("max_shards", max_shards);
  check_positive("bytes_per_string", bytes_per_string);
  checked_size(spec, axis);
  return cut(spec, axis, std::min<int64_t>(max_shards, ceil_of_quotient(spec.bytes(), min_shard_bytes)));
}

std::vector<int64_t> MaxSizePartitioner::operator()(const TensorSpec& spec, int axis) const {
  return cut_by_size(spec, {.max_shard_bytes = max_shard_bytes,
                            .axis = axis,
                            .max_shards = max_shards,
                            .bytes_per_string = bytes_per_string});
}

std::vector<int64_t> FixedShardsPartitioner::operator()(const TensorSpec& spec, int axis) const {
  return cut_fixed(spec, axis, num_shards);
}

Partitioner fixed_size_partitioner(int num_shards, int axis) {
  return [=](const TensorSpec& spec) { return cut_fixed(spec, axis, num_shards); };
}

Partitioner spread_over(size_t parameter_servers) {
  constexpr int64_t kLeast = 128 << 10;  // bytes, below which another request costs more than it saves
  return [=](const TensorSpec& spec) {
    return cut(spec, 0, std::min(static_cast<int64_t>(parameter_servers), spec.bytes() / kLeast));
  };
}

Partitioner variable_axis_size_partitioner(VariableAxisSizeOptions options) {
  return [options](const TensorSpec& spec) { return cut_by_size(spec, options); };
}

Partitioner min_max_variable_partitioner(MinMaxVariableOptions options) {
  return [options](const TensorSpec& spec) {
    return MinSizePartitioner{options.min_slice_bytes, options.max_partitions, options.bytes_per_string}(spec,
                                                                                                         options.axis);
  };
}

int64_t checked_shards(const Partitioner& partitioner, const std::string& variable, const TensorSpec& spec) {
  if (!partitioner || spec.sizes.empty()) return 1;
  const std::vector<int64_t> parts = partitioner(spec);
  const auto refuse = [&](const auto&... expected) {
    return invalid_argument("variable_partitioner: for variable \"", variable, "\" of ", spec.to_string(),
                            " it returned [", absl::StrJoin(parts, ", "), "]; expected ", expected...);
  };
  if (parts.size() != spec.sizes.size()) throw refuse("a count for each of ", spec.sizes.size(), " axes");
  if (std::ranges::any_of(parts, [](int64_t count) { return count < 1; })) throw refuse("positive counts");
  if (std::ranges::any_of(parts.begin() + 1, parts.end(), [](int64_t count) { return count > 1; })) {
    throw refuse("a cut along the first axis only");
  }
  const int64_t most = std::max<int64_t>(1, spec.sizes[0]);
  if (parts[0] > most) throw refuse("at most ", most, " parts, one for each row");
  return parts[0];
}

std::vector<std::pair<int64_t, int64_t>> shard_rows(int64_t rows, int64_t shards) {
  MUSTER_CHECK(rows >= 0 && shards > 0) << rows << " rows, " << shards << " shards";
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int64_t first = 0;
  for (int64_t shard = 0; shard < shards; ++shard) {
    const int64_t count = rows / shards + (shard < rows % shards);
    ranges.emplace_back(first, count);
    first += count;
  }
  return ranges;
}

}  // namespace muster
