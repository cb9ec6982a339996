#include "muster/runtime/variable_files.h"

#include <ATen/ops/empty.h>

#include <filesystem>

#include "muster/base/status.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/runtime/tensors.h"

namespace muster {
namespace {

std::span<std::byte> bytes_of(at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

}  // namespace

std::vector<ShardEntry> save_variables(const VariableStore& store, const std::string& task,
                                       const std::string& directory, const std::vector<StoredVariable>& variables) {
  PlainTensors plain;
  std::vector<at::Tensor> values;  // references: whoever writes meanwhile makes a copy
  std::vector<Slice> slices;
  for (const StoredVariable& variable : variables) {
    const std::shared_ptr<VariableCell> cell = store.find(variable.name);
    if (!cell) throw not_found("variable \"", variable.whole, "\" is not at ", task, "; was the task restarted?");
    values.push_back(cell->read().to(at::kCPU).contiguous());
    slices.push_back({.variable = variable.whole,
                      .spec = cell->spec(),
                      .full_sizes = variable.whole_sizes,
                      .row_offset = variable.first_row,
                      .bytes = bytes_of(values.back())});
  }
  return write_shard(directory, task, slices);
}

void restore_variables(VariableStore& store, const LocalDevices& devices, const std::string& checkpoint,
                       const std::vector<StoredVariable>& variables) {
  PlainTensors plain;
  const CheckpointReader reader(checkpoint);
  std::vector<at::Tensor> values;
  for (const StoredVariable& variable : variables) {
    if (!reader.has(variable.whole)) {
      throw not_found("checkpoint ", checkpoint, " has no variable \"", variable.whole, "\"");
    }
    const TensorSpec expected{variable.spec.dtype, variable.whole_sizes};
    if (reader.spec(variable.whole) != expected) {
      throw invalid_argument("variable \"", variable.whole, "\" is ", expected.to_string(), ", but checkpoint ",
                             checkpoint, " has it as ", reader.spec(variable.whole).to_string());
    }
    values.push_back(at::empty(variable.spec.sizes, at::TensorOptions(scalar_type_of(variable.spec.dtype))));
    reader.read(variable.whole, variable.first_row, rows_of(variable.spec.sizes), bytes_of(values.back()));
  }
  for (size_t i = 0; i < variables.size(); ++i) {
    store.declare(variables[i].name, variables[i].spec, devices.device(variables[i].device))->assign(values[i]);
  }
}

void check_below(const std::vector<std::string>& roots, const std::string& path) {
  namespace fs = std::filesystem;
  const fs::path wanted = fs::weakly_canonical(path);
  for (const std::string& root : roots) {
    const fs::path allowed = fs::weakly_canonical(root);
    if (std::mismatch(allowed.begin(), allowed.end(), wanted.begin(), wanted.end()).first == allowed.end()) return;
  }
  throw Error(Status(StatusCode::kPermissionDenied,
                     str_cat("this task may not use the directory ", path,
                             " for checkpoints; start it with --storage and a directory above it")));
}

}  // namespace muster
