#include "muster/train/weights_file.h"

#include <ATen/ops/empty.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <span>
#include <system_error>

#include "muster/base/status.h"
#include "muster/io/crc32c.h"
#include "muster/io/output_file.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

std::span<const std::byte> bytes_in(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

constexpr const char* kSumOf = "muster.crc32c.";

// What programs have not, and files have.
struct ForeignType {
  at::ScalarType type;
  std::string_view in_files, name;
};
constexpr ForeignType kForeignTypes[] = {
    {at::ScalarType::UInt16, "U16", "uint16"},
    {at::ScalarType::UInt32, "U32", "uint32"},
    {at::ScalarType::UInt64, "U64", "uint64"},
    {at::ScalarType::Float8_e4m3fn, "F8_E4M3", "float8_e4m3fn"},
    {at::ScalarType::Float8_e5m2, "F8_E5M2", "float8_e5m2"},
};
const ForeignType* foreign_type_of(at::ScalarType type) {
  const auto* known = std::ranges::find(kForeignTypes, type, &ForeignType::type);
  return known == std::end(kForeignTypes) ? nullptr : known;
}

NamedSpec spec_in_file(const std::string& name, const at::Tensor& tensor) {
  const ForeignType* foreign = foreign_type_of(tensor.scalar_type());
  if (foreign == nullptr) return {name, spec_of(tensor)};
  return {name, {*as_large_as(foreign->in_files), tensor.sizes().vec()}, foreign->in_files};
}

std::string sum_of(const at::Tensor& tensor) { return absl::StrFormat("%08x", crc32c(bytes_in(tensor))); }

}  // namespace

void write_weights(const std::string& path, const NamedTensors& tensors,
                   const std::map<std::string, std::string>& metadata) {
  if (path.empty()) throw invalid_argument("safetensors: expected a file name, got none");
  std::error_code unknown;  // the file system says why when it is written to
  const std::filesystem::file_status there = std::filesystem::status(path, unknown);
  if (is_directory(there)) throw invalid_argument("file \"", path, "\": is a directory");
  // It would be gone: /dev/null, for one, if whoever runs this may write there.
  if (is_character_file(there) || is_block_file(there) || is_fifo(there) || is_socket(there)) {
    throw invalid_argument("file \"", path, "\": is no plain file, which could be replaced");
  }
  NamedTensors sorted = tensors;
  // So that each of them begins at a multiple of its element size, for those who map the file.
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.element_size() > b.second.element_size(); });
  PlainTensors plain;
  const auto here = [](const at::Tensor& tensor) { return tensor.detach().cpu().contiguous(); };
  std::vector<NamedSpec> specs;
  std::map<std::string, std::string> described = metadata;
  for (const auto& [name, tensor] : sorted) {
    specs.push_back(spec_in_file(name, tensor));
    described[kSumOf + name] = sum_of(here(tensor));  // stands before the bytes
  }

  static std::atomic<uint64_t> files{0};
  const std::string temporary = str_cat(path, ".", getpid(), "-", files.fetch_add(1), ".tmp");
  try {
    SafetensorsWriter writer(temporary, std::move(specs), described);
    for (const auto& [name, tensor] : sorted) {
      const at::Tensor written = here(tensor);
      writer.write(name, bytes_in(written));
    }
    writer.finish();
  } catch (const Error& error) {  // whoever has asked knows the file by its name
    const Status& status = error.status();
    throw Error(Status(status.code(), absl::StrReplaceAll(status.message(), {{temporary, path}}), status.task(),
                       status.detail()));
  }
  std::error_code failed;
  std::filesystem::rename(temporary, path, failed);
  if (failed) {
    std::filesystem::remove(temporary);
    throw unavailable("file \"", path, "\": cannot be put in its place: ", failed.message());
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  sync_directory(folder.empty() ? "." : folder);
}

std::string WeightSpec::to_string() const {
  const ForeignType* foreign = foreign_type_of(type);
  if (foreign == nullptr) return TensorSpec{dtype_of(type), sizes}.to_string();
  return str_cat(foreign->name, "[", absl::StrJoin(sizes, ", "), "]");
}

WeightSpec spec_of_weight(const SafetensorsFile& file, const std::string& name) {
  const TensorSpec& stored = file.stored_spec(name);
  const std::string_view foreign = file.foreign_type(name);
  if (foreign.empty()) return {scalar_type_of(stored.dtype), stored.sizes};
  return {std::ranges::find(kForeignTypes, foreign, &ForeignType::in_files)->type, stored.sizes};
}

WeightSpec spec_of_weight(const at::Tensor& tensor) { return {tensor.scalar_type(), tensor.sizes().vec()}; }

namespace {

// What libtorch computes with other bytes is nothing that anybody has meant.
void expect_bools(const SafetensorsFile& file, const std::string& name, const at::Tensor& tensor) {
  if (tensor.scalar_type() != at::kBool) return;
  const std::span bytes(static_cast<const uint8_t*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.numel()));
  const auto other = std::ranges::find_if(bytes, [](uint8_t byte) { return byte > 1; });
  if (other == bytes.end()) return;
  throw data_loss("file \"", file.path(), "\": tensor \"", name, "\": byte ", other - bytes.begin(), " is ",
                  int{*other}, ", expected 0 or 1 for elements of type BOOL");
}

}  // namespace

at::Tensor read_weight(const SafetensorsFile& file, const std::string& name) {
  const WeightSpec spec = spec_of_weight(file, name);
  PlainTensors plain;
  at::Tensor tensor = at::empty(spec.sizes, at::TensorOptions().dtype(spec.type));
  file.read(name, 0, {static_cast<std::byte*>(tensor.mutable_data_ptr()), static_cast<size_t>(tensor.nbytes())});
  const auto expected = file.metadata().find(kSumOf + name);
  if (expected == file.metadata().end()) {
    expect_bools(file, name, tensor);
    return tensor;
  }
  if (expected->second == sum_of(tensor)) return tensor;
  throw data_loss("file \"", file.path(), "\": tensor \"", name, "\": CRC-32C ", sum_of(tensor), ", expected ",
                  expected->second,
                  ": the file is damaged, or another program has changed the values and kept the "
                  "metadata, of which it must leave out what begins with \"",
                  kSumOf, "\"");
}

}  // namespace muster
