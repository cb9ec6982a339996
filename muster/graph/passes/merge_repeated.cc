#include <absl/container/flat_hash_map.h>

#include <cstring>
#include <vector>

#include "muster/graph/aliases.h"
#include "muster/graph/op_traits.h"
#include "muster/graph/passes/passes.h"

namespace muster {
namespace {

// Above this, comparing costs more than a second constant does.
constexpr size_t kLargestMergedConstant = 4096;

template <class T>
void add_bytes(std::string& key, const T& value) {
  key.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// Two arguments are equal when their keys are. Unlike ==, it tells -0.0 from 0.0, and a NaN equals itself.
void add_key(std::string& key, const Argument& argument) {
  key.push_back(static_cast<char>(argument.value.index()));
  struct Writer {
    std::string& key;
    void operator()(None) const {}
    void operator()(Undefined) const {}
    void operator()(HereDevice) const {}
    void operator()(HereGenerator) const {}
    void operator()(ValueRef ref) const { add_bytes(key, ref.id); }
    void operator()(int64_t value) const { add_bytes(key, value); }
    void operator()(double value) const { add_bytes(key, value); }
    void operator()(bool value) const { add_bytes(key, value); }
    void operator()(std::complex<double> value) const {
      add_bytes(key, value.real());
      add_bytes(key, value.imag());
    }
    void operator()(const std::string& value) const {
      add_bytes(key, value.size());
      key += value;
    }
    void operator()(const ArgumentList& list) const {
      add_bytes(key, list.size());
      for (const Argument& element : list) add_key(key, element);
    }
  };
  std::visit(Writer{key}, argument.value);
}

class Merger {
 public:
  Merger(Program& program, const Aliases& aliases)
      : program_(program),
        aliases_(aliases),
        escapes_(aliases.num_groups()),
        reshaped_(aliases.num_groups()),
        last_write_(aliases.num_groups(), -1),
        replacement_(program.num_values) {
    for (ValueId value = 0; value < program.num_values; ++value) replacement_[value] = value;
    for (ValueId output : program.outputs) {
      if (output != kNoValue) escapes_[aliases.group(output)] = true;
    }
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      if (!changes_shape_in_place(program.op_of(program.instructions[i]).name)) continue;
      for (int group : aliases.written_groups(i)) reshaped_[group] = true;
    }
  }

  int run() {
    merge_constants();
    std::vector<Instruction> kept;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      Instruction& instruction = program_.instructions[i];
      for (Argument& argument : instruction.arguments) {
        for_each_value(argument, [&](ValueId& id) { id = replacement_[id]; });
      }
      if (!merge(i)) kept.push_back(std::move(instruction));
      for (int group : aliases_.written_groups(i)) last_write_[group] = static_cast<int64_t>(i);
    }
    for (ValueId& output : program_.outputs) {
      if (output != kNoValue) output = replacement_[output];
    }
    int merged = static_cast<int>(program_.instructions.size() - kept.size());
    program_.instructions = std::move(kept);
    return merged;
  }

 private:
  struct Earlier {
    int64_t number;
    std::vector<std::vector<ValueId>> results;
  };

  // Two results of the program must not become one tensor: the caller may write to one of them.
  bool may_stand_in(ValueId earlier, ValueId later) const {
    int a = aliases_.group(earlier), b = aliases_.group(later);
    return !(escapes_[a] && escapes_[b] && a != b);
  }

  void replace(ValueId later, ValueId earlier) {
    replacement_[later] = earlier;
    if (escapes_[aliases_.group(later)]) escapes_[aliases_.group(earlier)] = true;
  }

  void merge_constants() {
    absl::flat_hash_map<std::string, ValueId> seen;
    std::erase_if(program_.constants, [&](const Constant& constant) {
      if (constant.bytes->size() > kLargestMergedConstant || aliases_.written(aliases_.group(constant.value)))
        return false;
      std::string key;
      add_bytes(key, constant.spec.dtype);
      add_bytes(key, constant.is_number);
      add_bytes(key, constant.spec.sizes.size());
      for (int64_t size : constant.spec.sizes) add_bytes(key, size);
      key += *constant.bytes;
      auto [found, is_new] = seen.try_emplace(std::move(key), constant.value);
      if (is_new || !may_stand_in(found->second, constant.value)) return false;
      replace(constant.value, found->second);
      return true;
    });
  }

  // Whether the instruction gave way to an earlier one.
  bool merge(size_t number) {
    const Instruction& instruction = program_.instructions[number];
    const OpSchema& schema = aliases_.schema(instruction);
    if (!is_pure(schema) || !has_steady_results(instruction)) return false;

    std::string key;
    add_bytes(key, instruction.op);
    add_bytes(key, instruction.device);
    for (const Argument& argument : instruction.arguments) add_key(key, argument);
    auto [found, is_new] =
        earlier_.try_emplace(std::move(key), Earlier{static_cast<int64_t>(number), instruction.results});
    if (is_new) return false;
    if (!still_holds(instruction, found->second) || !have_equal_shape(found->second.results, instruction.results)) {
      found->second = {static_cast<int64_t>(number), instruction.results};
      return false;
    }
    for (size_t r = 0; r < instruction.results.size(); ++r) {
      for (size_t v = 0; v < instruction.results[r].size(); ++v) {
        ValueId later = instruction.results[r][v];
        if (later != kNoValue) replace(later, found->second.results[r][v]);
      }
    }
    return true;
  }

  // Whether nobody writes to what it returns. A view may be written: both views show the same memory, before and after.
  bool has_steady_results(const Instruction& instruction) const {
    const bool view = is_view(program_.op_of(instruction).name);
    for (const auto& result : instruction.results) {
      for (ValueId value : result) {
        if (value == kNoValue) continue;
        int group = aliases_.group(value);
        if (view ? reshaped_[group] : aliases_.written(group)) return false;
      }
    }
    return true;
  }

  bool still_holds(const Instruction& instruction, const Earlier& earlier) const {
    bool holds = true;
    if (!is_view(program_.op_of(instruction).name)) {
      for (const Argument& argument : instruction.arguments) {
        for_each_value(argument,
                       [&](ValueId id) { holds = holds && last_write_[aliases_.group(id)] < earlier.number; });
      }
    }
    for (size_t r = 0; holds && r < instruction.results.size(); ++r) {
      for (size_t v = 0; v < instruction.results[r].size() && v < earlier.results[r].size(); ++v) {
        ValueId later = instruction.results[r][v], before = earlier.results[r][v];
        if (later != kNoValue && before != kNoValue) holds = holds && may_stand_in(before, later);
      }
    }
    return holds;
  }

  // Whether the earlier one has a value wherever the later one has.
  static bool have_equal_shape(const std::vector<std::vector<ValueId>>& earlier,
                               const std::vector<std::vector<ValueId>>& later) {
    for (size_t r = 0; r < later.size(); ++r) {
      if (earlier[r].size() != later[r].size()) return false;
      for (size_t v = 0; v < later[r].size(); ++v) {
        if (later[r][v] != kNoValue && earlier[r][v] == kNoValue) return false;
      }
    }
    return true;
  }

  Program& program_;
  const Aliases& aliases_;
  std::vector<bool> escapes_;         // by group: part of it leaves the program as an output
  std::vector<bool> reshaped_;        // by group: somebody changes a shape in place
  std::vector<int64_t> last_write_;   // by group: the instruction that wrote to it last
  std::vector<ValueId> replacement_;  // by value
  absl::flat_hash_map<std::string, Earlier> earlier_;
};

int run(Program& program, const std::vector<int>& argument_classes) {
  const Aliases aliases(program, argument_classes);
  int merged = 0;
  for (size_t i = 0; i < program.bodies.size(); ++i) merged += run(program.bodies[i], aliases.argument_classes(i));
  return merged + Merger(program, aliases).run();
}

}  // namespace

int merge_repeated(Program& program) { return run(program, {}); }

}  // namespace muster
