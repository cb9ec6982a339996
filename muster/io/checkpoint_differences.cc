#include "muster/io/checkpoint_differences.h"

#include <absl/strings/numbers.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/io/disk.h"
#include "muster/io/row_names.h"

namespace muster {
namespace {

constexpr std::string_view kShardEnd = ".safetensors";
constexpr std::string_view kOf = ".of-";

// The name that a file of a checkpoint of this step has in those that are made on top of it.
std::string linked_name(const std::string& file, int64_t step) {
  const std::string stem = file.substr(0, file.size() - kShardEnd.size());
  const size_t of = stem.rfind(kOf);
  int64_t before = 0;
  if (of != std::string::npos && absl::SimpleAtoi(stem.substr(of + kOf.size()), &before)) return file;
  return str_cat(stem, kOf, step, kShardEnd);
}

// A table, or the part of it that begins with this row.
using TablePart = std::pair<std::string, int64_t>;

TablePart part_of(const ShardEntry& entry) {
  if (const auto name = RowName::parse(entry.variable)) return {name->table, name->first_row};
  return {entry.variable, entry.row_offset};
}

int64_t difference_of(const ShardEntry& entry) {
  const auto name = RowName::parse(entry.variable);
  return name ? name->difference : 0;
}

std::set<std::string> files_of(const CheckpointIndex& index) {
  std::set<std::string> files;
  for (const ShardEntry& entry : index.entries) files.insert(entry.file);
  return files;
}

// One difference of a part, as far as it was found.
struct FoundDifference {
  const ShardEntry* ids = nullptr;
  const ShardEntry* rows = nullptr;
};

std::optional<std::string> complaint_about(const FoundDifference& found, const ShardEntry& base) {
  if (found.ids == nullptr) return "has rows without their numbers";
  if (found.rows == nullptr) return "has numbers without their rows";
  const TensorSpec& ids = found.ids->spec;
  const TensorSpec& rows = found.rows->spec;
  if (ids.sizes != found.ids->full_sizes || ids.dtype != DType::kLong || ids.sizes.size() != 1) {
    return str_cat("has numbers as ", ids.to_string());
  }
  TensorSpec expected = rows;  // what the table is like whose rows are made on demand, its rule says
  if (!RowName::parse(base.variable)) expected = {base.spec.dtype, base.full_sizes};
  if (expected.sizes.empty()) return "is a difference of a scalar";
  expected.sizes[0] = ids.sizes[0];
  if (rows.sizes != found.rows->full_sizes || rows != expected) {
    return str_cat("has rows as ", rows.to_string(), ", expected ", expected.to_string());
  }
  return std::nullopt;
}

}  // namespace

bool has_differences(const std::vector<ShardEntry>& entries) {
  for (const ShardEntry& entry : entries) {
    if (difference_of(entry) > 0) return true;
  }
  return false;
}

std::optional<std::string> complaint_about_differences(const std::vector<ShardEntry>& entries) {
  std::map<TablePart, const ShardEntry*> bases;
  std::map<TablePart, std::map<int64_t, FoundDifference>> differences;
  for (const ShardEntry& entry : entries) {
    const auto name = RowName::parse(entry.variable);
    if (!name || name->what == RowName::kRule) bases[part_of(entry)] = &entry;
    if (!name || name->difference == 0) continue;
    FoundDifference& found = differences[part_of(entry)][name->difference];
    if (name->what == RowName::kIds) found.ids = &entry;
    if (name->what == RowName::kRows) found.rows = &entry;
  }
  for (const auto& [part, numbered] : differences) {
    const auto base = bases.find(part);
    int64_t last = 0;
    for (const auto& [number, found] : numbered) {
      const std::string about =
          str_cat("variable \"", part.first, "\" from row ", part.second, " on: difference ", number, " ");
      if (base == bases.end()) return str_cat(about, "is of nothing");
      if (number != last + 1) return str_cat(about, "lacks the one before");
      if (const auto complaint = complaint_about(found, *base->second)) return str_cat(about, *complaint);
      last = number;
    }
  }
  return std::nullopt;
}

bool link_base(const std::string& path, const CheckpointIndex& base, const std::string& temporary) {
  std::vector<std::string> made;
  for (const std::string& file : files_of(base)) {
    const std::string link = str_cat(temporary, "/", linked_name(file, base.step));
    if (disk::link(str_cat(path, "/", file), link) == 0) {
      made.push_back(link);
      continue;
    }
    const int error = errno;
    MUSTER_LOG(info) << "no checkpoint is made on top of " << path << ", a whole one is: " << link
                     << ": link: " << std::strerror(error);
    for (const std::string& other : made) unlink(other.c_str());
    return false;
  }
  return true;
}

std::vector<ShardEntry> on_top_of(const CheckpointIndex& base, std::vector<ShardEntry> stored,
                                  const std::string& temporary) {
  std::map<TablePart, int64_t> wanted;  // which difference each part has stored
  for (const ShardEntry& entry : stored) {
    if (const int64_t number = difference_of(entry); number > 0) wanted[part_of(entry)] = number;
  }
  std::set<std::string> needed;
  std::map<TablePart, int64_t> found;  // the last difference that the base has
  for (const ShardEntry& entry : base.entries) {
    const TablePart part = part_of(entry);
    if (!wanted.contains(part)) continue;
    int64_t& last = found[part];
    last = std::max(last, difference_of(entry));
    ShardEntry inherited = entry;
    inherited.file = linked_name(entry.file, base.step);
    needed.insert(inherited.file);
    stored.push_back(std::move(inherited));
  }
  for (const auto& [part, number] : wanted) {
    if (const auto last = found.find(part); last != found.end() && last->second == number - 1) continue;
    throw failed_precondition("checkpoint of step ", base.step, ": variable \"", part.first, "\" from row ",
                              part.second, " on has no difference ", number - 1,
                              ", and a task has stored what follows");
  }
  for (const std::string& file : files_of(base)) {
    const std::string link = linked_name(file, base.step);
    if (!needed.contains(link)) unlink(str_cat(temporary, "/", link).c_str());
  }
  return stored;
}

}  // namespace muster
