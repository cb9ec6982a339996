#include "muster/io/checkpoint_index.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <span>
#include <tuple>

#include "muster/base/status.h"
#include "muster/io/checkpoint_differences.h"
#include "muster/io/crc32c.h"
#include "muster/io/json_words.h"
#include "muster/io/safetensors.h"

namespace muster {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "muster checkpoint";

// A name in an index may come from a stranger: it must not lead out of the checkpoint.
bool is_shard_file(std::string_view name) {
  return name.starts_with("shard-") && name.ends_with(".safetensors") &&
         name.find_first_of(std::string_view("/\0", 2)) == std::string_view::npos;
}

std::string checksum_of(const json& index) {
  const std::string text = index.dump();
  return absl::StrFormat("%08x", crc32c(std::as_bytes(std::span(text))));
}

// The parts of an index as their types, with `name` for errors.
int64_t integer(const json& value, std::string_view name) {
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= INT64_MAX : value.is_number_integer();
  if (!fits) throw data_loss(name, ": expected a whole number, got ", value.dump());
  return value.get<int64_t>();
}

std::vector<int64_t> integers(const json& list, std::string_view name) {
  std::vector<int64_t> values;
  for (const json& value : list.get_ref<const json::array_t&>()) values.push_back(integer(value, name));
  return values;
}

ShardEntry entry_from(const json& value, std::string_view name) {
  const auto& type = value.at("dtype").get_ref<const std::string&>();
  const auto dtype = dtype_from_safetensors(type);
  if (!dtype) throw data_loss(name, ": element type \"", type, "\" is not known");
  const int64_t crc = integer(value.at("crc32c"), name);
  if (crc < 0 || crc > UINT32_MAX) throw data_loss(name, ": expected a sum of 32 bits, got ", crc);
  return {.variable = value.at("variable").get<std::string>(),
          .spec = {*dtype, integers(value.at("sizes"), name)},
          .full_sizes = integers(value.at("full_sizes"), name),
          .row_offset = integer(value.at("row_offset"), name),
          .file = value.at("file").get<std::string>(),
          .crc = static_cast<uint32_t>(crc)};
}

}  // namespace

int64_t rows_of(const std::vector<int64_t>& sizes) { return sizes.empty() ? 1 : sizes.front(); }

std::string ShardEntry::tensor_name() const {
  if (spec.sizes == full_sizes) return variable;
  return str_cat(variable, "[", row_offset, ":", row_offset + rows_of(spec.sizes), "]");
}

std::optional<std::string> complaint_about(const ShardEntry& entry) {
  const auto& [variable, spec, full_sizes, row_offset, file, crc] = entry;
  const std::string about = str_cat("variable \"", variable, "\": ");
  if (!safetensors_name(spec.dtype)) return str_cat(about, name_of(spec.dtype), " cannot be stored");
  const TensorSpec full{spec.dtype, full_sizes};
  if (!checked_bytes(spec) || !checked_bytes(full)) return str_cat(about, full.to_string(), " has no size in bytes");
  const bool same_row =
      spec.sizes.size() == full_sizes.size() &&
      (full_sizes.empty() || std::equal(full_sizes.begin() + 1, full_sizes.end(), spec.sizes.begin() + 1));
  if (!same_row || row_offset < 0 || row_offset > rows_of(full_sizes) - rows_of(spec.sizes)) {
    return str_cat(about, spec.to_string(), " from row ", row_offset, " on is not inside ", full.to_string());
  }
  if (!is_shard_file(file)) return str_cat(about, "\"", file, "\" is not a name of a shard file");
  return std::nullopt;
}

std::optional<std::string> complaint_about(const CheckpointIndex& index) {
  if (index.step < 0) return str_cat("step ", index.step, " is negative");
  std::vector<const ShardEntry*> sorted;
  for (const ShardEntry& entry : index.entries) {
    if (auto complaint = complaint_about(entry)) return complaint;
    sorted.push_back(&entry);
  }
  std::sort(sorted.begin(), sorted.end(), [](const ShardEntry* a, const ShardEntry* b) {
    return std::tie(a->variable, a->row_offset) < std::tie(b->variable, b->row_offset);
  });
  for (auto begin = sorted.begin(); begin != sorted.end();) {
    const ShardEntry& first = **begin;
    const std::string about = str_cat("variable \"", first.variable, "\": ");
    int64_t next_row = 0;
    auto it = begin;
    for (; it != sorted.end() && (*it)->variable == first.variable; ++it) {
      const ShardEntry& entry = **it;
      if (entry.spec.dtype != first.spec.dtype || entry.full_sizes != first.full_sizes) {
        return str_cat(about, first.spec.to_string(), " and ", entry.spec.to_string(), " are not slices of one tensor");
      }
      const int64_t rows = rows_of(entry.spec.sizes);
      if (rows == 0) continue;
      if (entry.row_offset > next_row) {
        return str_cat(about, "rows ", next_row, " to ", entry.row_offset - 1, " are missing");
      }
      if (entry.row_offset < next_row) return str_cat(about, "row ", entry.row_offset, " is there twice");
      next_row += rows;
    }
    const int64_t rows = rows_of(first.full_sizes);
    if (next_row != rows) return str_cat(about, "rows ", next_row, " to ", rows - 1, " are missing");
    begin = it;
  }
  return complaint_about_differences(index.entries);
}

std::string to_json(const CheckpointIndex& index) {
  json entries = json::array();
  for (const ShardEntry& entry : index.entries) {
    entries.push_back({{"variable", entry.variable},
                       {"dtype", safetensors_name(entry.spec.dtype).value_or("")},
                       {"sizes", entry.spec.sizes},
                       {"full_sizes", entry.full_sizes},
                       {"row_offset", entry.row_offset},
                       {"file", entry.file},
                       {"crc32c", entry.crc}});
  }
  json value = {{"format", kFormat},
                {"version", has_differences(index.entries) ? kCheckpointVersion : kVersionWithoutDifferences},
                {"step", index.step},
                {"metadata", index.metadata},
                {"entries", std::move(entries)},
                {"files", index.files}};
  try {
    value["checksum"] = checksum_of(value);
  } catch (const json::exception&) {
    throw invalid_argument("checkpoint of step ", index.step, ": expected names and metadata in UTF-8");
  }
  return value.dump() + "\n";
}

CheckpointIndex checkpoint_index_from_json(std::string_view text, std::string_view name) {
  // An index is five deep. What is far deeper would overflow the stack when its checksum is made.
  const auto shallow = [&](int depth, json::parse_event_t, json&) {
    if (depth > 5) throw data_loss(name, ": too many levels");
    return true;
  };
  CheckpointIndex index{.step = 0};
  try {
    json value = json::parse(text, shallow);
    if (value.at("format") != kFormat) throw data_loss(name, ": not a Muster checkpoint");
    const std::string checksum = value.at("checksum").get<std::string>();
    value.erase("checksum");
    // Also a later version ends with this checksum, so what is damaged is not taken for what is new.
    if (checksum != checksum_of(value)) throw data_loss(name, ": the checksum is wrong");
    const int64_t version = integer(value.at("version"), name);
    if (version < kVersionWithoutDifferences || version > kCheckpointVersion) {
      throw failed_precondition(name, ": version ", version, ", expected ", kVersionWithoutDifferences, " to ",
                                kCheckpointVersion);
    }
    index.step = integer(value.at("step"), name);
    index.metadata = value.at("metadata").get<std::map<std::string, std::string>>();
    for (const json& entry : value.at("entries").get_ref<const json::array_t&>()) {
      index.entries.push_back(entry_from(entry, name));
    }
    for (const auto& [file, bytes] : value.at("files").get_ref<const json::object_t&>()) {
      if (!is_shard_file(file)) throw data_loss(name, ": \"", file, "\" is not a name of a shard file");
      index.files.emplace(file, integer(bytes, name));
    }
  } catch (const json::exception& error) {
    throw data_loss(name, ": ", json_words(error, text.size()));
  }
  if (auto complaint = complaint_about(index)) throw data_loss(name, ": ", *complaint);
  for (const ShardEntry& entry : index.entries) {
    if (!index.files.contains(entry.file)) throw data_loss(name, ": no size of file \"", entry.file, "\"");
  }
  return index;
}

}  // namespace muster
