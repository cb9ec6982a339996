// How variables are cut into shards for the parameter servers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "muster/graph/program.h"

namespace muster {

// Which parameter server a variable, or a part of one, goes to.
enum class PsPlacement {
  kRoundRobin,       // one after the other, as TensorFlow does
  kBalancedByBytes,  // where the fewest bytes are
};

// Says for a variable into how many parts each axis is cut: {2, 1} for a matrix that is cut into an upper and a lower
// half. Only the first axis can be cut; see checked_shards().
using Partitioner = std::function<std::vector<int64_t>(const TensorSpec&)>;

// The partitioners are plain values that are Partitioners. Called with settings that are not positive, or for a tensor
// that does not have the axis, they throw kInvalidArgument. They cut the axis that they are asked about, the first one
// unless told otherwise.
// Limit: tensors do not hold strings, so bytes_per_string is checked and then ignored.

// As many shards as are allowed, as long as each has at least min_shard_bytes.
struct MinSizePartitioner {
  int64_t min_shard_bytes = 256 << 10;
  int max_shards = 1;
  int64_t bytes_per_string = 16;

  std::vector<int64_t> operator()(const TensorSpec& spec, int axis = 0) const;
};

// As few shards as possible, so that none has over max_shard_bytes, unless one row does.
struct MaxSizePartitioner {
  int64_t max_shard_bytes;
  std::optional<int> max_shards{};  // none: as many as it takes
  int64_t bytes_per_string = 16;

  std::vector<int64_t> operator()(const TensorSpec& spec, int axis = 0) const;
};

// Always so many shards, or one for each row where there are fewer rows.
struct FixedShardsPartitioner {
  int num_shards;

  std::vector<int64_t> operator()(const TensorSpec& spec, int axis = 0) const;
};

Partitioner fixed_size_partitioner(int num_shards, int axis = 0);

// What a strategy does unless it is told otherwise: a variable of 256 KiB or more is cut into one part for each
// parameter server, or fewer, so that none is below 128 KiB. So one large variable does not keep one of them busy
// alone.
Partitioner spread_over(size_t parameter_servers);

struct VariableAxisSizeOptions {
  int64_t max_shard_bytes;
  int axis = 0;
  std::optional<int> max_shards{};
  int64_t bytes_per_string = 16;
};

Partitioner variable_axis_size_partitioner(VariableAxisSizeOptions options);

struct MinMaxVariableOptions {
  int max_partitions = 1;
  int axis = 0;
  int64_t min_slice_bytes = 256 << 10;
  int64_t bytes_per_string = 16;
};

// MinSizePartitioner along any axis.
Partitioner min_max_variable_partitioner(MinMaxVariableOptions options);

// The number of shards that the partitioner wants for the variable; 1 without a partitioner and for a scalar, about
// which it is not asked. Throws kInvalidArgument when the answer is not one count per axis, when it cuts along another
// axis than the first, or into more parts than there are rows.
int64_t checked_shards(const Partitioner& partitioner, const std::string& variable, const TensorSpec& spec);

// The first row and the number of rows of each shard. The first shards take the remainder: 10 rows in 4 shards are
// 3, 3, 2 and 2 rows. REQUIRES: rows >= 0, shards > 0.
std::vector<std::pair<int64_t, int64_t>> shard_rows(int64_t rows, int64_t shards);

}  // namespace muster
