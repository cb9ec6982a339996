#include "muster/io/checkpoint_reader.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include "muster/base/status.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/io/crc32c.h"
#include "muster/io/disk.h"
#include "muster/io/row_names.h"

namespace muster {

CheckpointReader::CheckpointReader(std::string path) : path_(std::move(path)), index_(read_checkpoint_index(path_)) {
  for (const ShardEntry& entry : index_.entries) shards_[entry.variable].push_back(&entry);
  for (auto& [variable, shards] : shards_) {
    std::sort(shards.begin(), shards.end(),
              [](const ShardEntry* a, const ShardEntry* b) { return a->row_offset < b->row_offset; });
  }
  for (const ShardEntry& entry : index_.entries) {
    const auto name = RowName::parse(entry.variable);
    if (!name || name->difference == 0 || name->what != RowName::kIds) continue;
    RowName rows = *name;
    rows.what = RowName::kRows;
    const auto whole = shards_.find(name->table);  // none of a table whose rows are made on demand
    const int64_t end = whole == shards_.end() ? 0 : rows_of(whole->second.front()->full_sizes);
    differences_[name->table].push_back({name->difference, &entry, shards_of(rows.text()).front(), end});
  }
  for (auto& [variable, several] : differences_) {
    std::sort(several.begin(), several.end(),
              [](const Difference& a, const Difference& b) { return a.number < b.number; });
  }
}

std::vector<std::string> CheckpointReader::names() const {
  std::vector<std::string> names;
  for (const auto& [variable, shards] : shards_) names.push_back(variable);
  return names;
}

TensorSpec CheckpointReader::spec(const std::string& variable) const {
  const ShardEntry& entry = *shards_of(variable).front();
  return {entry.spec.dtype, entry.full_sizes};
}

template <class Use>
void CheckpointReader::for_slices(const std::string& variable, int64_t first_row, int64_t rows, const Use& use) const {
  const TensorSpec full = spec(variable);
  const int64_t full_rows = rows_of(full.sizes);
  if (first_row < 0 || rows < 0 || rows > full_rows || first_row > full_rows - rows) {
    throw out_of_range("checkpoint \"", path_, "\": variable \"", variable, "\": ", rows, " rows from row ", first_row,
                       " on are not in ", full.to_string());
  }
  for (const ShardEntry* entry : shards_of(variable)) {
    const int64_t begin = std::max(first_row, entry->row_offset);
    const int64_t end = std::min(first_row + rows, entry->row_offset + rows_of(entry->spec.sizes));
    if (begin < end) use(*entry, begin, end);
  }
}

void CheckpointReader::read(const std::string& variable, int64_t first_row, int64_t rows,
                            std::span<std::byte> out) const {
  const TensorSpec full = spec(variable);
  const int64_t full_rows = rows_of(full.sizes);
  const int64_t row_bytes = full_rows == 0 ? 0 : full.bytes() / full_rows;
  for_slices(variable, first_row, rows, [&](const ShardEntry&, int64_t, int64_t) {});
  if (static_cast<int64_t>(out.size()) != rows * row_bytes) {
    throw invalid_argument("checkpoint \"", path_, "\": variable \"", variable, "\": room for ", out.size(),
                           " bytes, expected ", rows * row_bytes);
  }
  if (out.empty()) return;
  for_slices(variable, first_row, rows, [&](const ShardEntry& entry, int64_t begin, int64_t end) {
    read_slice(entry, (begin - entry.row_offset) * row_bytes,
               out.subspan(static_cast<size_t>((begin - first_row) * row_bytes),
                           static_cast<size_t>((end - begin) * row_bytes)));
  });
  if (const auto changed = differences_.find(variable); changed != differences_.end()) {
    for (const Difference& difference : changed->second) apply(difference, first_row, rows, out);
  }
}

void CheckpointReader::check(const std::string& variable, int64_t first_row, int64_t rows) const {
  for_slices(variable, first_row, rows, [&](const ShardEntry& entry, int64_t, int64_t) { read_slice(entry, 0, {}); });
  if (const auto changed = differences_.find(variable); changed != differences_.end()) {
    for (const Difference& difference : changed->second) apply(difference, first_row, rows, {});
  }
}

void CheckpointReader::apply(const Difference& difference, int64_t first_row, int64_t rows,
                             std::span<std::byte> out) const {
  constexpr int64_t kPieceBytes = 1 << 20;
  const int64_t stored = rows_of(difference.ids->spec.sizes);
  const int64_t row_bytes = stored == 0 ? 0 : difference.rows->spec.bytes() / stored;
  const int64_t at_once = std::max<int64_t>(1, kPieceBytes / std::max<int64_t>(row_bytes, sizeof(int64_t)));
  if (out.empty()) read_slice(*difference.rows, 0, {});
  std::vector<int64_t> ids;
  std::vector<std::byte> piece;
  int64_t before = -1;
  for (int64_t at = 0; at < stored; at += at_once) {
    ids.resize(static_cast<size_t>(std::min(at_once, stored - at)));
    read_slice(*difference.ids, at * static_cast<int64_t>(sizeof(int64_t)), std::as_writable_bytes(std::span(ids)));
    for (const int64_t id : ids) {
      if (id <= before || id >= difference.end) {
        throw data_loss("checkpoint \"", path_, "\": \"", difference.ids->variable, "\" has row ", id, " after row ",
                        before);
      }
      before = id;
    }
    if (out.empty()) continue;
    // They rise: those that are wanted follow each other.
    const auto begin = std::lower_bound(ids.begin(), ids.end(), first_row);
    const auto end = std::lower_bound(begin, ids.end(), first_row + rows);
    if (begin == end) continue;
    piece.resize(static_cast<size_t>((end - begin) * row_bytes));
    read_slice(*difference.rows, (at + (begin - ids.begin())) * row_bytes, piece);
    for (auto id = begin; id != end; ++id) {
      std::copy_n(piece.begin() + (id - begin) * row_bytes, row_bytes, out.begin() + (*id - first_row) * row_bytes);
    }
  }
}

const std::vector<const ShardEntry*>& CheckpointReader::shards_of(const std::string& variable) const {
  const auto it = shards_.find(variable);
  if (it == shards_.end()) {
    throw not_found("checkpoint \"", path_, "\": variable \"", variable, "\": there is none");
  }
  return it->second;
}

void CheckpointReader::read_slice(const ShardEntry& entry, int64_t begin, std::span<std::byte> out) const {
  const std::string about = str_cat("variable \"", entry.variable, "\": ");
  const std::string name = entry.tensor_name();
  std::shared_ptr<const SafetensorsFile> file;
  try {
    file = this->file(entry.file);
  } catch (const Error& error) {
    // The index says that there is a file and that we know its types. Too few descriptors, for one, is not damage.
    const bool damage = error.code() == StatusCode::kNotFound || error.code() == StatusCode::kUnimplemented;
    throw Error(Status(damage ? StatusCode::kDataLoss : error.code(), str_cat(about, error.status().message())));
  }
  if (!file->has(name) || file->spec(name) != entry.spec) {
    throw data_loss(about, "file \"", file->path(), "\": expected tensor \"", name, "\" as ", entry.spec.to_string());
  }
  bool intact = false;
  {
    absl::MutexLock hold(&mu_);
    intact = intact_.contains(&entry);
  }
  if (intact) {
    file->read(name, begin, out);
    return;
  }
  // Without the lock: two threads may both sum, which is better than that one waits for a slice that it does not want.
  constexpr size_t kUnwantedBytes = 4 << 20;
  const int64_t size = entry.spec.bytes(), end = begin + static_cast<int64_t>(out.size());
  const bool all_wanted = out.size() == static_cast<size_t>(size);
  const std::unique_ptr<void, decltype(&std::free)> unwanted(
      all_wanted ? nullptr : std::aligned_alloc(disk::kBlock, kUnwantedBytes), &std::free);
  if (!all_wanted && !unwanted) throw std::bad_alloc();
  uint32_t crc = 0;
  for (int64_t at = 0; at < size;) {
    const bool wanted = at >= begin && at < end;
    const int64_t until = wanted ? end : at < begin ? begin : size;
    const auto left = static_cast<size_t>(until - at);
    std::span<std::byte> piece;
    if (wanted) {
      piece = out.subspan(static_cast<size_t>(at - begin), left);
    } else {
      piece = {static_cast<std::byte*>(unwanted.get()), std::min(kUnwantedBytes, left)};
    }
    const size_t got = file->read_some(name, at, piece);
    crc = crc32c(piece.first(got), crc);
    at += static_cast<int64_t>(got);
  }
  if (crc != entry.crc) {
    throw data_loss(about, "file \"", file->path(), "\": tensor \"", name, "\": CRC-32C ", absl::StrFormat("%08x", crc),
                    ", expected ", absl::StrFormat("%08x", entry.crc));
  }
  absl::MutexLock hold(&mu_);
  intact_.insert(&entry);
}

std::shared_ptr<const SafetensorsFile> CheckpointReader::file(const std::string& name) const {
  absl::MutexLock hold(&mu_);
  auto& file = files_[name];
  if (!file) file = std::make_shared<const SafetensorsFile>(str_cat(path_, "/", name), InputFile::Links::kRefuse);
  return file;
}

}  // namespace muster
