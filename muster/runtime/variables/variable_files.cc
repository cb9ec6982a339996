#include "muster/runtime/variables/variable_files.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <system_error>
#include <thread>

#include "muster/base/status.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/io/checkpoint_reader.h"
#include "muster/io/row_names.h"
#include "muster/io/safetensors.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/rows/changed_rows.h"
#include "muster/runtime/rows/row_table.h"
#include "muster/runtime/variables/no_value.h"
#include "muster/runtime/variables/spare_memory.h"
#include "muster/runtime/variables/variable_pieces.h"
#include "muster/runtime/work_share.h"

namespace muster {
namespace {

std::span<std::byte> bytes_of(at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

at::Tensor empty_of(const TensorSpec& spec) {
  constexpr int64_t kLarge = 1 << 20;
  if (spec.bytes() < kLarge) return at::empty(spec.sizes, at::TensorOptions(scalar_type_of(spec.dtype)));
  return SpareMemory::instance().empty(spec);
}

// ---- Tables whose rows are made on demand: only those that were written are stored, with their numbers in the whole
// table, and the rule for all others. Each part of the table stores under names of its own (row_names.h).
std::string name_of(const std::string& table, RowName::What what, int64_t first_row, int64_t difference = 0) {
  return RowName{table, what, first_row, difference}.text();
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

// Whether this number can be an element: what is not is no number in C++.
bool is_element(DType type, double number) {
  const auto in = [number]<class T>(T) {
    // The end is not a T, but it is a double, where the largest T may not be one.
    return number >= static_cast<double>(std::numeric_limits<T>::min()) &&
           number < std::ldexp(1.0, std::numeric_limits<T>::digits);
  };
  switch (type) {
    case DType::kByte: return in(uint8_t{});
    case DType::kChar: return in(int8_t{});
    case DType::kShort: return in(int16_t{});
    case DType::kInt: return in(int32_t{});
    case DType::kLong: return in(int64_t{});
    case DType::kHalf:
    case DType::kBFloat16:
    case DType::kFloat:
    case DType::kDouble: return true;
    default: return false;
  }
}

bool is_floating(DType type) {
  return type == DType::kHalf || type == DType::kBFloat16 || type == DType::kFloat || type == DType::kDouble;
}

Slice whole_slice(std::string name, TensorSpec spec, TensorPieces bytes) {
  return {
      .variable = std::move(name), .spec = spec, .full_sizes = spec.sizes, .row_offset = 0, .pieces = std::move(bytes)};
}

// Rows of a table, and their numbers.
std::vector<Slice> slices_of_rows(const VariablePieces& pieces, const StoredVariable& variable,
                                  const std::shared_ptr<VariableCell>& cell, const std::shared_ptr<const RowSet>& set,
                                  int64_t difference = 0) {
  TensorSpec rows = variable.spec;
  rows.sizes[0] = set->count();
  return {whole_slice(name_of(variable.whole, RowName::kRows, variable.first_row, difference), rows,
                      pieces.rows(cell, set)),
          whole_slice(name_of(variable.whole, RowName::kIds, variable.first_row, difference),
                      {DType::kLong, {rows.sizes[0]}}, pieces.numbers(set, variable.first_row))};
}

// What there is of such a table, which is one by now.
std::vector<Slice> slices_on_demand(const VariablePieces& pieces, const StoredVariable& variable,
                                    const std::shared_ptr<VariableCell>& cell, const RowRule& rule) {
  const at::Tensor numbers = rule_as_numbers(rule, variable.spec.dtype, variable.whole_sizes);
  std::vector<Slice> slices{whole_slice(
      name_of(variable.whole, RowName::kRule, variable.first_row), spec_of(numbers), [numbers](int64_t offset) {
        return std::span(static_cast<const std::byte*>(numbers.const_data_ptr()), numbers.nbytes()).subspan(offset);
      })};
  const std::shared_ptr<const RowSet> written = written_rows(*cell);
  if (written->count() == 0) return slices;
  for (Slice& slice : slices_of_rows(pieces, variable, cell, written)) slices.push_back(std::move(slice));
  return slices;
}

// Rows that have changed are worth a difference of their own if that is small enough (SaveSince).
bool is_worth_while(const ChangedRows::Since& since, int64_t bytes, const SaveSince& asked) {
  return !since.all && since.differences < asked.most_differences &&
         since.difference_bytes + bytes <= since.whole_bytes / 2;
}

int64_t bytes_of(const std::vector<Slice>& slices) {
  int64_t bytes = 0;
  for (const Slice& slice : slices) bytes += slice.spec.bytes();
  return bytes;
}

// How a variable is saved: its value, or what has changed of it.
std::vector<Slice> slices_of(const VariablePieces& pieces, const StoredVariable& variable,
                             const std::shared_ptr<VariableCell>& cell, const SaveSince& asked) {
  std::optional<RowRule> rule;
  std::shared_ptr<ChangedRows> changed;
  std::optional<ChangedRows::Since> since;
  {
    const BriefRead held(*cell, /*by_rows=*/true);
    if (const RowTable* table = RowTable::of(held.value)) rule = table->rule();
    if (asked.owner != 0 && cell->device().is_cpu() && !variable.spec.sizes.empty() &&
        variable.spec.bytes() >= asked.least_bytes) {
      changed = cell->changed_rows();
      since = changed->begin_save(asked.owner, asked.base, asked.mark);
    }
  }
  if (since) {
    std::vector<Slice> slices = slices_of_rows(
        pieces, variable, cell, std::make_shared<const RowSet>(std::move(since->rows)), since->differences + 1);
    if (const int64_t bytes = bytes_of(slices); is_worth_while(*since, bytes, asked)) {
      changed->note_save(asked.owner, asked.mark, since->differences + 1, since->difference_bytes + bytes,
                         since->whole_bytes);
      return slices;
    }
  }
  std::vector<Slice> slices;
  if (rule) {
    slices = slices_on_demand(pieces, variable, cell, *rule);
  } else {
    slices.push_back({.variable = variable.whole,
                      .spec = variable.spec,
                      .full_sizes = variable.whole_sizes,
                      .row_offset = variable.first_row,
                      .pieces = pieces.all(cell)});
  }
  if (changed) changed->note_save(asked.owner, asked.mark, 0, 0, bytes_of(slices));
  return slices;
}

void check_spec(const std::string& checkpoint, const StoredVariable& variable, const TensorSpec& found) {
  const TensorSpec expected{variable.spec.dtype, variable.whole_sizes};
  if (found == expected) return;
  throw invalid_argument("variable \"", variable.whole, "\" is ", expected.to_string(), ", but checkpoint ", checkpoint,
                         " has it as ", found.to_string());
}

// A table by rows on demand, as a checkpoint has it. Once made, all but the numbers of its rows is known to fit.
class StoredTable {
 public:
  StoredTable(const CheckpointReader& reader, const std::string& checkpoint, const StoredVariable& variable,
              const std::vector<int64_t>& parts)
      : reader_(reader), checkpoint_(checkpoint), variable_(variable) {
    std::optional<std::vector<int64_t>> rule;
    for (int64_t part : parts) {
      std::vector<int64_t> numbers = numbers_of(name_of(variable.whole, RowName::kRule, part));
      if (rule && *rule != numbers) fail("has two rules");
      rule = std::move(numbers);
    }
    if (rule->size() <= kSizes) fail("has a rule of ", rule->size(), " numbers");
    const auto type = dtype_from_number((*rule)[kType]);
    const int64_t kind = (*rule)[kKind];
    rule_ = {RowRule::kConstant, std::bit_cast<double>((*rule)[kA]), std::bit_cast<double>((*rule)[kB]),
             static_cast<uint64_t>((*rule)[kSeed]), variable.first_row};
    if (!type || kind < RowRule::kConstant || kind > RowRule::kNormal || !is_element(*type, rule_.a) ||
        (kind != RowRule::kConstant && !is_floating(*type))) {
      fail("has a rule that is none");
    }
    rule_.kind = static_cast<RowRule::Kind>(kind);
    check_spec(checkpoint, variable, {*type, {rule->begin() + kSizes, rule->end()}});
    for (int64_t part : parts) lists_.push_back({part, 0});
    for (const std::string& name : reader.names()) {
      const auto row = RowName::parse(name);
      if (row && row->table == variable.whole && row->difference > 0 && row->what == RowName::kIds) {
        lists_.push_back({row->first_row, row->difference});
      }
    }
    std::stable_sort(lists_.begin(), lists_.end(),
                     [](const RowList& a, const RowList& b) { return a.difference < b.difference; });
    for (const RowList& list : lists_) check_list(list);
  }

  // Calls `use(row, bytes)` for every row of this variable that was written, and again where it has changed since.
  template <class Use>
  void for_rows(const Use& use) const {
    const int64_t first = variable_.first_row, end = first + variable_.spec.sizes[0];
    const int64_t row_bytes = bytes_of_a_row();
    constexpr int64_t kPieceBytes = 1 << 20;
    for (const RowList& list : lists_) {
      const std::string ids_name = name_in(list, RowName::kIds);
      if (!reader_.has(ids_name)) continue;  // a part of which no row was written
      const int64_t stored = reader_.spec(ids_name).sizes[0];
      const int64_t at_once = std::max<int64_t>(kPieceBytes / std::max<int64_t>(row_bytes, 8), 1);
      std::vector<int64_t> ids;
      std::vector<std::byte> rows;
      int64_t before = -1;
      for (int64_t at = 0; at < stored; at += at_once) {
        const int64_t count = std::min(at_once, stored - at);
        ids.resize(static_cast<size_t>(count));
        rows.resize(static_cast<size_t>(count * row_bytes));
        reader_.read(ids_name, at, count, std::as_writable_bytes(std::span(ids)));
        reader_.read(name_in(list, RowName::kRows), at, count, rows);
        for (int64_t i = 0; i < count; ++i) {
          const int64_t id = ids[static_cast<size_t>(i)];
          if (id <= before || id >= variable_.whole_sizes[0]) fail("has row ", id, " after row ", before);
          before = id;
          if (id < first || id >= end) continue;
          use(id - first, rows.data() + i * row_bytes);
        }
      }
    }
  }

  at::Tensor value() const {
    at::Tensor table = RowTable::zeros(variable_.spec);
    RowTable::begin(table, rule_);
    auto* memory = static_cast<std::byte*>(table.mutable_data_ptr());
    const auto row_bytes = static_cast<size_t>(bytes_of_a_row());
    for_rows([&](int64_t row, const std::byte* bytes) {
      RowTable::of(table)->write(row);
      if (row_bytes > 0) std::memcpy(memory + static_cast<size_t>(row) * row_bytes, bytes, row_bytes);
    });
    return table;
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... what) const {
    throw data_loss("checkpoint ", checkpoint_, ": table \"", variable_.whole, "\" ", what...);
  }

  int64_t bytes_of_a_row() const {
    int64_t bytes = bytes_per_element(variable_.spec.dtype);
    for (size_t i = 1; i < variable_.spec.sizes.size(); ++i) bytes *= variable_.spec.sizes[i];
    return bytes;
  }

  std::vector<int64_t> numbers_of(const std::string& name) const {
    const TensorSpec spec = reader_.spec(name);
    if (spec.dtype != DType::kLong || spec.sizes.size() != 1) fail("has \"", name, "\" as ", spec.to_string());
    constexpr int64_t kMost = 64;  // a tensor has no more dimensions
    if (spec.sizes[0] > kSizes + kMost) fail("has a rule of ", spec.sizes[0], " numbers");
    std::vector<int64_t> numbers(static_cast<size_t>(spec.sizes[0]));
    reader_.read(name, 0, spec.sizes[0], std::as_writable_bytes(std::span(numbers)));
    return numbers;
  }

  // Rows with their numbers: those that were written when the part was stored as a whole, or a difference.
  struct RowList {
    int64_t first_row, difference;
  };

  std::string name_in(const RowList& list, RowName::What what) const {
    return name_of(variable_.whole, what, list.first_row, list.difference);
  }

  void check_list(const RowList& list) const {
    const std::string ids = name_in(list, RowName::kIds), rows = name_in(list, RowName::kRows);
    if (reader_.has(ids) != reader_.has(rows)) fail("lacks \"", reader_.has(ids) ? rows : ids, "\"");
    if (!reader_.has(ids)) return;
    const TensorSpec numbers = reader_.spec(ids);
    if (numbers.dtype != DType::kLong || numbers.sizes.size() != 1 || (numbers.sizes[0] == 0 && list.difference == 0)) {
      fail("has \"", ids, "\" as ", numbers.to_string());
    }
    TensorSpec expected{variable_.spec.dtype, variable_.whole_sizes};
    expected.sizes[0] = numbers.sizes[0];
    if (reader_.spec(rows) != expected) {
      fail("has \"", rows, "\" as ", reader_.spec(rows).to_string(), ", expected ", expected.to_string());
    }
  }

  const CheckpointReader& reader_;
  const std::string& checkpoint_;
  const StoredVariable& variable_;
  std::vector<RowList> lists_;  // the later ones change what the earlier ones say
  RowRule rule_;
};

// The parts, by their first rows, in which a checkpoint has such a table; none if it has not.
std::vector<int64_t> parts_on_demand(const CheckpointReader& reader, const std::string& table) {
  std::vector<int64_t> firsts;
  for (const std::string& name : reader.names()) {
    const auto parts = RowName::parse(name);
    if (parts && parts->table == table && parts->what == RowName::kRule) firsts.push_back(parts->first_row);
  }
  return firsts;
}

// Throws unless every variable is a part of its whole.
void check_request(const std::vector<StoredVariable>& variables) {
  std::set<std::string> names;
  for (const StoredVariable& variable : variables) {
    const auto& [name, spec, device, whole, whole_sizes, first_row] = variable;
    if (const auto complaint =
            complaint_about(ShardEntry{whole, spec, whole_sizes, first_row, "shard-.safetensors", 0})) {
      throw invalid_argument(*complaint);
    }
    if (!names.insert(name).second) throw invalid_argument("variable \"", name, "\" is named twice");
    if (RowName::parse(whole)) {
      throw invalid_argument("variable \"", whole, "\": checkpoints keep such a name for rows");
    }
  }
}

// Its value in the checkpoint, which has it; none if it is only to be checked.
at::Tensor stored_value(const CheckpointReader& reader, const std::string& checkpoint, const StoredVariable& variable,
                        RestoreStage stage) {
  if (!reader.has(variable.whole)) {
    const StoredTable table(reader, checkpoint, variable, parts_on_demand(reader, variable.whole));
    if (stage == RestoreStage::kApply) return table.value();
    table.for_rows([](int64_t, const std::byte*) {});
    return {};
  }
  check_spec(checkpoint, variable, reader.spec(variable.whole));
  const int64_t rows = rows_of(variable.spec.sizes);
  if (stage == RestoreStage::kCheck) {
    reader.check(variable.whole, variable.first_row, rows);
    return {};
  }
  at::Tensor value = empty_of(variable.spec);
  reader.read(variable.whole, variable.first_row, rows, bytes_of(value));
  return value;
}

// Calls `use(i)` for every i below `count`, some at a time: one waits for the disk while another one sums or is given
// new memory. Throws what the first one threw that did; none begins after that.
void at_once(size_t count, const std::function<void(size_t)>& use) {
  constexpr size_t kMost = 4;
  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> failures(count);
  const auto work = [&] {
    PlainTensors plain;
    for (size_t i = next++; i < count; i = next++) {
      try {
        use(i);
      } catch (...) {
        failures[i] = std::current_exception();
        next = count;
      }
    }
  };
  {
    std::vector<std::jthread> others;
    try {
      while (others.size() + 1 < std::min(count, kMost)) others.emplace_back(work);
    } catch (const std::system_error&) {  // a machine that is out of threads: those that there are do it all
    }
    work();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

// Of the machine's cores that a task takes which saves beside a training. Several tasks may be on one machine.
constexpr double kShareBeside = 0.02;

std::string staged_name(const StoredVariable& variable) {
  return str_cat(variable.name, "@", variable.first_row, " of ", variable.whole);
}

}  // namespace

std::vector<ShardEntry> save_variables(const VariableStore& store, const std::string& task,
                                       const std::string& directory, const std::vector<StoredVariable>& variables,
                                       const SaveOptions& options) {
  check_request(variables);
  Cells cells;
  for (const StoredVariable& variable : variables) {
    cells.push_back(store.find(variable.name));
    if (!cells.back()) {
      throw Error(no_value(StatusCode::kNotFound, variable.name,
                           str_cat("variable \"", variable.whole, "\" is not at ", task, "; was the task restarted?")));
    }
    if (cells.back()->spec() == variable.spec) continue;
    throw invalid_argument("variable \"", variable.whole, "\" is ", cells.back()->spec().to_string(), " at ", task,
                           ", cannot be saved as ", variable.spec.to_string());
  }
  return save_variables(cells, task, directory, variables, options);
}

std::vector<ShardEntry> save_variables(const Cells& cells, const std::string& task, const std::string& directory,
                                       const std::vector<StoredVariable>& variables, const SaveOptions& options) {
  PlainTensors plain;
  check_request(variables);
  std::shared_ptr<WorkShare> beside;
  if (options.pace == SavePace::kBeside) {
    beside = std::make_shared<WorkShare>(std::min(1.0, kShareBeside * std::thread::hardware_concurrency()));
  }
  const VariablePieces pieces;
  std::vector<Slice> slices;
  for (size_t i = 0; i < variables.size(); ++i) {
    for (Slice& slice : slices_of(pieces, variables[i], cells[i], options.since)) {
      if (beside)
        slice.pieces = [beside, of = std::move(slice.pieces)](int64_t offset) {
          beside->rest();
          return of(offset);
        };
      slices.push_back(std::move(slice));
    }
  }
  return write_shard(directory, task, slices,
                     options.pace == SavePace::kFull ? OutputFile::Cache::kThrough : OutputFile::Cache::kPast);
}

void restore_variables(VariableStore& store, const LocalDevices& devices, const std::string& checkpoint,
                       const std::vector<StoredVariable>& variables, RestoreStage stage, StagedValues* staged) {
  PlainTensors plain;
  check_request(variables);
  const CheckpointReader reader(checkpoint);
  if (staged != nullptr && stage == RestoreStage::kCheck) staged->checkpoint = checkpoint;
  // What takes no time first, for all of them.
  for (const StoredVariable& variable : variables) {
    const at::Device device = devices.device(variable.device);
    const auto cell = store.find(variable.name);
    const bool same_device = !cell || cell->device() == device || (cell->device().is_cpu() && device.is_cpu());
    if (cell && (cell->spec() != variable.spec || !same_device)) {
      throw invalid_argument("variable \"", variable.whole, "\" is ", cell->spec().to_string(), " on ",
                             cell->device().str(), " at ", devices.task(), ", cannot be restored as ",
                             variable.spec.to_string(), " on ", device.str());
    }
    if (reader.has(variable.whole)) continue;
    if (parts_on_demand(reader, variable.whole).empty()) {
      throw not_found("checkpoint ", checkpoint, " has no variable \"", variable.whole, "\"");
    }
    if (!device.is_cpu() || variable.spec.sizes.empty()) {
      throw invalid_argument("variable \"", variable.whole, "\" is ", variable.spec.to_string(), " on ", device.str(),
                             ", but checkpoint ", checkpoint, " has rows on demand, which need rows on a CPU");
    }
  }
  if (stage == RestoreStage::kCheck) {
    // Rows on demand may be many or few; what is known to fit is kept.
    std::vector<at::Tensor*> kept(variables.size());
    for (size_t i = 0; i < variables.size(); ++i) {
      const StoredVariable& variable = variables[i];
      if (staged == nullptr || !reader.has(variable.whole) || variable.spec.bytes() > staged->room) continue;
      staged->room -= variable.spec.bytes();
      kept[i] = &staged->values[staged_name(variable)];
    }
    return at_once(variables.size(), [&](size_t i) {
      at::Tensor value =
          stored_value(reader, checkpoint, variables[i], kept[i] ? RestoreStage::kApply : RestoreStage::kCheck);
      if (kept[i]) *kept[i] = std::move(value);
    });
  }
  size_t applied = 0;
  try {
    for (const StoredVariable& variable : variables) {
      at::Tensor value;
      if (staged != nullptr && staged->checkpoint == checkpoint) {
        if (auto known = staged->values.extract(staged_name(variable))) value = std::move(known.mapped());
      }
      if (!value.defined()) value = stored_value(reader, checkpoint, variable, stage);
      const at::Device device = devices.device(variable.device);
      store.declare(variable.name, variable.spec, device)->replace(device.is_cpu() ? value : value.to(device));
      ++applied;
    }
  } catch (...) {
    if (applied == 0) throw;
    const Status status = status_of(std::current_exception());
    throw Error(Status(
        status.code(),
        str_cat(applied, " of ", variables.size(), " variables at ", devices.task(), " have values of checkpoint ",
                checkpoint, " and the others not, so restore again: ", status.message()),
        status.task(), status.detail()));
  }
}

bool has_variable(const CheckpointReader& reader, const std::string& variable) {
  return reader.has(variable) || !parts_on_demand(reader, variable).empty();
}

at::Tensor value_in(const CheckpointReader& reader, const std::string& checkpoint, const StoredVariable& variable) {
  PlainTensors plain;
  check_request({variable});
  const at::Tensor value = stored_value(reader, checkpoint, variable, RestoreStage::kApply);
  return RowTable::of(value) == nullptr ? value : RowTable::completed(value);
}

std::set<std::string> variables_in(const CheckpointIndex& index) {
  std::set<std::string> names;
  for (const ShardEntry& entry : index.entries) {
    const auto parts = RowName::parse(entry.variable);
    names.insert(parts ? parts->table : entry.variable);
  }
  return names;
}

std::string path_below(const std::vector<std::string>& roots, const std::string& path, const PathUse& use) {
  namespace fs = std::filesystem;
  const auto denied = [&](const auto&... why) {
    return Error(Status(StatusCode::kPermissionDenied, str_cat("path \"", path, "\": ", why...)));
  };
  const auto canonical = [](const std::string& text) {
    fs::path found = fs::weakly_canonical(text);
    return found.has_filename() ? found : found.parent_path();  // without a slash at the end
  };
  if (path.empty() || path.find('\0') != std::string::npos) throw denied("expected a path");
  const fs::path given(path);
  if (std::find(given.begin(), given.end(), "..") != given.end())
    throw denied(use.things, " have no \"..\" in their path");
  if (roots.empty()) {
    throw denied("this task may use no directory for ", use.things, "; whoever starts it allows one (", use.allowed_by,
                 " in the options of a Server or an InProcessCluster)");
  }
  std::string allowed;
  try {
    const fs::path wanted = canonical(path);
    for (const std::string& root : roots) {
      const fs::path above = canonical(root);
      if (std::mismatch(above.begin(), above.end(), wanted.begin(), wanted.end()).first == above.end()) {
        return wanted.string();
      }
      str_append(allowed, allowed.empty() ? "" : ", ", root);
    }
  } catch (const fs::filesystem_error& error) {
    throw denied(error.code().message());
  }
  throw denied("this task may use only what is below ", allowed, " for ", use.things, " (", use.allowed_by, ")");
}

}  // namespace muster
