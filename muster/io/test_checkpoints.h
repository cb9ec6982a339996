// Checkpoints of one variable in any number of shards, for the tests of this folder. Not part of the library.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "muster/io/checkpoint_directory.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/io/test_files.h"

namespace muster::testing_support {

// The rows of the variable "w": two numbers each, which say step and row.
inline std::vector<int32_t> rows_of_step(int64_t step, int64_t first, int64_t count) {
  std::vector<int32_t> values;
  for (int64_t row = first; row < first + count; ++row) {
    values.push_back(static_cast<int32_t>(step));
    values.push_back(static_cast<int32_t>(row));
  }
  return values;
}

// Has a task store rows of "w".
inline std::vector<ShardEntry> write_rows(const std::string& temporary, const std::string& task, int64_t step,
                                          int64_t first, int64_t count, int64_t full_rows) {
  const auto values = rows_of_step(step, first, count);
  return write_shard(temporary, task, {{"w", {DType::kInt, {count, 2}}, {full_rows, 2}, first, bytes_of(values)}});
}

// As even as possible: 5 rows in 3 shards are 2, 2 and 1.
inline std::vector<std::pair<int64_t, int64_t>> shards_of(int64_t rows, int64_t shards) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (int64_t shard = 0, first = 0; shard < shards; ++shard) {
    const int64_t count = rows / shards + (shard < rows % shards ? 1 : 0);
    ranges.emplace_back(first, count);
    first += count;
  }
  return ranges;
}

// Stores "w" of this step from tasks /job:ps/task:0, 1, … into `temporary`.
inline CheckpointIndex write_shards(const std::string& temporary, int64_t step, int64_t rows, int64_t shards) {
  CheckpointIndex index{.step = step};
  int task = 0;
  for (const auto& [first, count] : shards_of(rows, shards)) {
    for (ShardEntry& entry :
         write_rows(temporary, "/job:ps/task:" + std::to_string(task++), step, first, count, rows)) {
      index.entries.push_back(std::move(entry));
    }
  }
  return index;
}

inline std::string save(CheckpointDirectory& directory, int64_t step, int64_t rows = 4, int64_t shards = 2) {
  const std::string temporary = directory.begin(step);
  return directory.commit(temporary, write_shards(temporary, step, rows, shards));
}

inline std::vector<int32_t> read_rows(const CheckpointReader& reader, int64_t first, int64_t count) {
  std::vector<int32_t> values(static_cast<size_t>(count) * 2);
  reader.read("w", first, count, std::as_writable_bytes(std::span(values)));
  return values;
}

inline std::vector<int64_t> steps_of(const CheckpointDirectory& directory) {
  std::vector<int64_t> steps;
  for (const Checkpoint& checkpoint : directory.all()) steps.push_back(checkpoint.step);
  return steps;
}

// Which one latest() gives, after a check that all of it can be read and is of that step; -1 for none.
inline int64_t latest_intact_step(const CheckpointDirectory& directory, int64_t rows = 4) {
  const auto latest = directory.latest();
  if (!latest) return -1;
  const bool same = read_rows(CheckpointReader(latest->path), 0, rows) == rows_of_step(latest->step, 0, rows);
  return same ? latest->step : -2;
}

}  // namespace muster::testing_support
