#include "muster/runtime/variable_files.h"

#include <ATen/ops/empty.h>

#include <bit>
#include <cstring>
#include <deque>
#include <filesystem>

#include "muster/base/status.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/runtime/row_ops.h"
#include "muster/runtime/row_table.h"
#include "muster/runtime/tensors.h"

namespace muster {
namespace {

std::span<std::byte> bytes_of(at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

// ---- Tables whose rows are made on demand: only those that were written are stored, with their numbers in the whole
// table, and the rule for all others. Each part of the table stores under names of its own: table#rule@first_row.
std::string name_of(const std::string& table, const char* what, int64_t first_row) {
  return str_cat(table, "#", what, "@", first_row);
}

enum RuleField { kKind, kA, kB, kSeed, kType, kSizes };

at::Tensor as_numbers(const std::vector<int64_t>& numbers) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(numbers.size())}, at::TensorOptions(at::kLong));
  std::memcpy(tensor.mutable_data_ptr(), numbers.data(), tensor.nbytes());
  return tensor;
}

at::Tensor rule_as_numbers(const RowRule& rule, DType type, const std::vector<int64_t>& whole_sizes) {
  std::vector<int64_t> numbers{rule.kind, std::bit_cast<int64_t>(rule.a), std::bit_cast<int64_t>(rule.b),
                               static_cast<int64_t>(rule.seed), static_cast<int64_t>(type)};
  numbers.insert(numbers.end(), whole_sizes.begin(), whole_sizes.end());
  return as_numbers(numbers);
}

at::Tensor read_all(const CheckpointReader& reader, const std::string& name) {
  const TensorSpec spec = reader.spec(name);
  at::Tensor value = at::empty(spec.sizes, at::TensorOptions(scalar_type_of(spec.dtype)));
  reader.read(name, 0, rows_of(spec.sizes), bytes_of(value));
  return value;
}

// Calls `store(name, tensor)` for all that there is of such a table.
template <class Store>
void save_on_demand(const StoredVariable& variable, const at::Tensor& value, const Store& store) {
  const RowTable& table = *RowTable::of(value);
  store(name_of(variable.whole, "rule", variable.first_row),
        rule_as_numbers(table.rule(), variable.spec.dtype, variable.whole_sizes));
  std::vector<int64_t> written = table.written_rows();
  if (written.empty()) return;
  store(name_of(variable.whole, "rows", variable.first_row), rows::gather(value, as_numbers(written)));
  for (int64_t& row : written) row += variable.first_row;
  store(name_of(variable.whole, "ids", variable.first_row), as_numbers(written));
}

// The parts, by their first rows, in which a checkpoint has such a table; none if it has not.
std::vector<int64_t> parts_on_demand(const CheckpointReader& reader, const std::string& table) {
  std::vector<int64_t> firsts;
  const std::string prefix = table + "#rule@";
  for (const std::string& name : reader.names()) {
    if (name.starts_with(prefix)) firsts.push_back(std::stoll(name.substr(prefix.size())));
  }
  return firsts;
}

void check_spec(const std::string& checkpoint, const StoredVariable& variable, const TensorSpec& found) {
  const TensorSpec expected{variable.spec.dtype, variable.whole_sizes};
  if (found == expected) return;
  throw invalid_argument("variable \"", variable.whole, "\" is ", expected.to_string(), ", but checkpoint ", checkpoint,
                         " has it as ", found.to_string());
}

at::Tensor restore_on_demand(const CheckpointReader& reader, const std::string& checkpoint,
                             const StoredVariable& variable, const std::vector<int64_t>& firsts) {
  const at::Tensor stored = read_all(reader, name_of(variable.whole, "rule", firsts.at(0)));
  const int64_t* rule = stored.const_data_ptr<int64_t>();
  const auto type = stored.numel() > kSizes ? dtype_from_number(rule[kType]) : std::nullopt;
  if (!type || rule[kKind] < RowRule::kConstant || rule[kKind] > RowRule::kNormal) {
    throw Error(Status(StatusCode::kDataLoss,
                       str_cat("checkpoint ", checkpoint, ": the rule of \"", variable.whole, "\" is none")));
  }
  check_spec(checkpoint, variable, {*type, {rule + kSizes, rule + stored.numel()}});
  at::Tensor table = RowTable::zeros(variable.spec);
  RowTable::begin(table, {static_cast<RowRule::Kind>(rule[kKind]), std::bit_cast<double>(rule[kA]),
                          std::bit_cast<double>(rule[kB]), static_cast<uint64_t>(rule[kSeed]), variable.first_row});
  auto* memory = static_cast<char*>(table.mutable_data_ptr());
  for (int64_t first : firsts) {
    const std::string ids_name = name_of(variable.whole, "ids", first);
    if (!reader.has(ids_name)) continue;  // a part of which no row was written
    const at::Tensor ids = read_all(reader, ids_name);
    const at::Tensor rows = read_all(reader, name_of(variable.whole, "rows", first));
    const size_t bytes = rows.nbytes() / static_cast<size_t>(rows.size(0));
    for (int64_t i = 0; i < ids.numel(); ++i) {
      const int64_t row = ids.const_data_ptr<int64_t>()[i] - variable.first_row;
      if (row < 0 || row >= variable.spec.sizes[0]) continue;
      RowTable::of(table)->write(row);
      std::memcpy(memory + static_cast<size_t>(row) * bytes,
                  static_cast<const char*>(rows.const_data_ptr()) + static_cast<size_t>(i) * bytes, bytes);
    }
  }
  return table;
}

// Holds a table while its rows are looked at, so that nobody copies it meanwhile.
class Held {
 public:
  explicit Held(VariableCell& cell) : cell_(cell), value(cell.begin_read(/*by_rows=*/true)) {}
  ~Held() { cell_.end_read(); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

 private:
  VariableCell& cell_;

 public:
  const at::Tensor value;
};

}  // namespace

std::vector<ShardEntry> save_variables(const VariableStore& store, const std::string& task,
                                       const std::string& directory, const std::vector<StoredVariable>& variables) {
  PlainTensors plain;
  std::deque<at::Tensor> values;  // references: whoever writes meanwhile makes a copy
  std::vector<Slice> slices;
  for (const StoredVariable& variable : variables) {
    const std::shared_ptr<VariableCell> cell = store.find(variable.name);
    if (!cell) throw not_found("variable \"", variable.whole, "\" is not at ", task, "; was the task restarted?");
    if (Held held(*cell); RowTable::of(held.value) != nullptr) {
      save_on_demand(variable, held.value, [&](const std::string& name, at::Tensor stored) {
        values.push_back(std::move(stored));
        const TensorSpec spec = spec_of(values.back());
        slices.push_back({name, spec, spec.sizes, 0, bytes_of(values.back())});
      });
      continue;
    }
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
      if (const auto parts = parts_on_demand(reader, variable.whole); !parts.empty()) {
        values.push_back(restore_on_demand(reader, checkpoint, variable, parts));
        continue;
      }
      throw not_found("checkpoint ", checkpoint, " has no variable \"", variable.whole, "\"");
    }
    check_spec(checkpoint, variable, reader.spec(variable.whole));
    values.push_back(at::empty(variable.spec.sizes, at::TensorOptions(scalar_type_of(variable.spec.dtype))));
    reader.read(variable.whole, variable.first_row, rows_of(variable.spec.sizes), bytes_of(values.back()));
  }
  for (size_t i = 0; i < variables.size(); ++i) {
    auto cell = store.declare(variables[i].name, variables[i].spec, devices.device(variables[i].device));
    RowTable::of(values[i]) == nullptr ? cell->assign(values[i]) : cell->replace(std::move(values[i]));
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
