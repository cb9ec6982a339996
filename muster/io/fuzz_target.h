// What the fuzzer does with its bytes; the corpus test does the same. Not part of the library.
#pragma once

#include <absl/strings/str_format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "muster/base/check.h"
#include "muster/base/status.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/io/crc32c.h"
#include "muster/io/safetensors.h"
#include "muster/io/test_files.h"

namespace muster::testing_support {

// The bytes are a letter and what it announces: 's' a safetensors file, 'i' the index of a checkpoint, 'c' an index, a
// zero byte, and the file of the only shard, which is called so:
inline constexpr const char* kFuzzShard = "shard-a.safetensors";

// The index with the sum that it should have: else nothing but the sum would ever be tried.
inline std::string with_right_sum(std::string_view text) {
  using nlohmann::json;
  const auto shallow = [](int depth, json::parse_event_t, json&) { return depth <= 10; };
  json value = json::parse(text, shallow, /*allow_exceptions=*/false);
  if (!value.is_object()) return std::string(text);
  value.erase("checksum");
  try {
    const std::string rest = value.dump();
    value["checksum"] = absl::StrFormat("%08x", crc32c(std::as_bytes(std::span(rest))));
    return value.dump();
  } catch (const json::exception&) {  // not in UTF-8
    return std::string(text);
  }
}

inline void read_everything(const SafetensorsFile& file) {
  for (const std::string& name : file.names()) {
    MUSTER_CHECK(static_cast<int64_t>(file.bytes(name).size()) == file.stored_spec(name).bytes());
  }
}

inline void read_everything(const CheckpointReader& reader) {
  for (const std::string& name : reader.names()) {
    const TensorSpec spec = reader.spec(name);
    const int64_t rows = rows_of(spec.sizes);
    reader.check(name, 0, rows);
    std::vector<std::byte> bytes(static_cast<size_t>(spec.bytes()));
    reader.read(name, 0, rows, bytes);
    if (rows > 1) reader.read(name, 1, rows - 1, std::span(bytes).first(bytes.size() / rows * (rows - 1)));
  }
}

// Everything that io/ does with a file that is not trusted. Returns whether it was taken for what it says it is.
inline bool try_checkpoint(std::string_view bytes) {
  if (bytes.empty()) return false;
  const char kind = bytes.front();
  bytes.remove_prefix(1);
  static const ScopedDirectory directory;
  try {
    switch (kind) {
      case 's':
        write_file(directory.path("a"), std::string(bytes));
        read_everything(SafetensorsFile(directory.path("a")));
        return true;
      case 'i': {
        const CheckpointIndex index = checkpoint_index_from_json(with_right_sum(bytes), "index");
        MUSTER_CHECK(checkpoint_index_from_json(to_json(index), "index") == index);
        return true;
      }
      case 'c': {
        const size_t end = std::min(bytes.find('\0'), bytes.size());
        write_file(directory.path(kIndexFile), with_right_sum(bytes.substr(0, end)));
        write_file(directory.path(kFuzzShard), std::string(bytes.substr(std::min(end + 1, bytes.size()))));
        read_everything(CheckpointReader(directory.path()));
        return true;
      }
      default: return false;
    }
  } catch (const Error&) {
    return false;
  }
}

}  // namespace muster::testing_support
