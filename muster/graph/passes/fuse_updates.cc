#include <absl/container/flat_hash_map.h>
#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <map>
#include <vector>

#include "muster/base/strings.h"
#include "muster/graph/aliases.h"
#include "muster/graph/passes/passes.h"

namespace muster {
namespace {

// Of an update in place that there is an op for which does it for many tensors; null for others. A name alone is not
// enough: the schema came with the program.
const OpForm* rule_for(const OpSchema& schema) {
  const OpForm& form = schema.known;
  const bool as_known = !form.together.empty() && schema.arguments.size() == static_cast<size_t>(form.arguments) &&
                        schema.arguments[0].written && schema.results.size() == 1 && schema.results[0].type == "Tensor";
  return as_known ? &form : nullptr;
}

// Updates that can be done at the place of the last one, because nothing in between looks at what they change or
// changes what they look at.
struct Batch {
  std::vector<size_t> members;
  absl::flat_hash_set<int> read;     // groups
  absl::flat_hash_set<int> written;  // groups
};

// Where the variables of a group live: a number that is equal for equal devices, or one of these.
constexpr int kNoVariable = -1;
constexpr int kSeveralHomes = -2;

int meet(int a, int b) {
  if (a == b || b == kNoVariable) return a;
  return a == kNoVariable ? b : kSeveralHomes;
}

class Fuser {
 public:
  Fuser(Program& program, const Aliases& aliases, const SchemaLookup& schema_of, const std::vector<int>& homes)
      : program_(program), aliases_(aliases), schema_of_(schema_of), homes_(homes) {}

  int run() {
    for (size_t i = 0; i < program_.instructions.size(); ++i) visit(i);
    for (auto& [key, batch] : open_) close(batch);
    if (replaced_.empty()) return 0;
    return rewrite();
  }

 private:
  // What two updates must have in common; empty for what is no update of a variable.
  std::string key_of(const Instruction& instruction) const {
    const OpForm* rule = rule_for(aliases_.schema(instruction));
    auto* self = rule ? std::get_if<ValueRef>(&instruction.arguments[0].value) : nullptr;
    if (!self) return "";
    for (int i = 1; i < rule->common_from; ++i) {
      if (!std::holds_alternative<ValueRef>(instruction.arguments[i].value)) return "";
    }
    // An update without a wish runs where its variable is, so the variables must be in one place.
    int home = homes_[aliases_.group(self->id)];
    if (home < 0) return "";
    std::string key = str_cat(rule->together, " ", instruction.device, " ", home);
    for (size_t i = rule->common_from; i < instruction.arguments.size(); ++i) {
      const auto& value = instruction.arguments[i].value;
      str_append(key, " ", value.index(), ":");
      // The bits, so that -0.0 is not 0.0.
      auto add = [&](const auto& number) { key.append(reinterpret_cast<const char*>(&number), sizeof number); };
      if (auto* whole = std::get_if<int64_t>(&value))
        add(*whole);
      else if (auto* real = std::get_if<double>(&value))
        add(*real);
      else if (auto* truth = std::get_if<bool>(&value))
        add(*truth);
      else if (auto* shared = std::get_if<ValueRef>(&value))
        add(shared->id);
      else
        return "";
    }
    return key;
  }

  void visit(size_t number) {
    const Instruction& instruction = program_.instructions[number];
    const std::string key = key_of(instruction);
    std::vector<int> operands;
    for (const Argument& argument : instruction.arguments) {
      for_each_value(argument, [&](ValueId id) { operands.push_back(aliases_.group(id)); });
    }
    // This instruction ends every batch that it would see done too late, or whose operands it changes.
    for (auto batch = open_.begin(); batch != open_.end();) {
      if (disturbs(number, operands, batch->second)) {
        close(batch->second);
        batch = open_.erase(batch);
      } else {
        ++batch;
      }
    }
    if (key.empty()) return;
    Batch& batch = open_[key];
    batch.members.push_back(number);
    const std::vector<int>& written = aliases_.written_groups(number);
    batch.written.insert(written.begin(), written.end());
    batch.read.insert(operands.begin(), operands.end());
  }

  bool disturbs(size_t number, const std::vector<int>& operands, const Batch& batch) const {
    const std::vector<int>& written = aliases_.written_groups(number);
    return std::any_of(operands.begin(), operands.end(), [&](int group) { return batch.written.contains(group); }) ||
           std::any_of(written.begin(), written.end(),
                       [&](int group) { return batch.read.contains(group) || batch.written.contains(group); });
  }

  void close(const Batch& batch) {
    if (batch.members.size() < 2) return;
    const Instruction& last = program_.instructions[batch.members.back()];
    const OpForm& rule = *rule_for(aliases_.schema(last));
    const std::string many(rule.together);
    std::optional<std::string> schema = schema_of_ ? schema_of_(many) : std::nullopt;
    if (!schema) return;

    Instruction fused{.op = -1, .device = last.device};
    for (int i = 0; i < rule.common_from; ++i) {
      ArgumentList each;
      for (size_t member : batch.members) each.push_back(program_.instructions[member].arguments[i]);
      fused.arguments.push_back({std::move(each)});
    }
    for (size_t i = rule.common_from; i < last.arguments.size(); ++i) fused.arguments.push_back(last.arguments[i]);
    for (size_t member : batch.members) replaced_[member] = false;
    replaced_[batch.members.back()] = true;
    fused_[batch.members.back()] = {std::move(fused), many, std::move(*schema)};
  }

  // Puts the fused instructions in and lets later uses of an update's result refer to the tensor that was updated.
  int rewrite() {
    absl::flat_hash_map<ValueId, ValueId> updated;
    auto resolve = [&](ValueId& id) {
      for (auto found = updated.find(id); found != updated.end(); found = updated.find(id)) id = found->second;
    };
    std::vector<Instruction> kept;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      Instruction& instruction = program_.instructions[i];
      auto found = replaced_.find(i);
      if (found == replaced_.end()) {
        for (Argument& argument : instruction.arguments) for_each_value(argument, resolve);
        kept.push_back(std::move(instruction));
        continue;
      }
      if (ValueId result = instruction.results[0][0]; result != kNoValue) {
        updated[result] = std::get<ValueRef>(instruction.arguments[0].value).id;
      }
      if (!found->second) continue;
      Fused& fused = fused_[i];
      fused.instruction.op = program_.intern_op(fused.name, fused.schema);
      for (Argument& argument : fused.instruction.arguments) for_each_value(argument, resolve);
      kept.push_back(std::move(fused.instruction));
    }
    for (ValueId& output : program_.outputs) {
      if (output != kNoValue) resolve(output);
    }
    int saved = static_cast<int>(program_.instructions.size() - kept.size());
    program_.instructions = std::move(kept);
    return saved;
  }

  struct Fused {
    Instruction instruction;
    std::string name;
    std::string schema;
  };

  Program& program_;
  const Aliases& aliases_;
  const SchemaLookup& schema_of_;
  const std::vector<int>& homes_;      // by group
  std::map<std::string, Batch> open_;  // by key
  std::map<size_t, bool> replaced_;    // by instruction: whether its batch stands in its place
  std::map<size_t, Fused> fused_;      // by instruction
};

// Where the arguments of each body come from, over all of its callers.
std::vector<std::vector<int>> homes_of_bodies(const Program& program, const Aliases& aliases,
                                              const std::vector<int>& homes) {
  std::vector<std::vector<int>> by_body;
  for (const Program& body : program.bodies) by_body.emplace_back(body.arguments.size(), kNoVariable);
  for (const Instruction& instruction : program.instructions) {
    for (size_t b = 0; b < instruction.bodies.size(); ++b) {
      const std::vector<ValueId> inputs = body_inputs(program, instruction, b);
      std::vector<int>& known = by_body[instruction.bodies[b]];
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i] != kNoValue) known[i] = meet(known[i], homes[aliases.group(inputs[i])]);
      }
    }
  }
  return by_body;
}

// The variables of a body are among its arguments; `argument_homes` says which and where they live.
int run(Program& program, const std::vector<int>& argument_classes, const std::vector<int>& argument_homes,
        const SchemaLookup& schema_of) {
  const Aliases aliases(program, argument_classes);
  std::vector<int> homes(aliases.num_groups(), kNoVariable);
  for (const VariableRef& variable : program.variables) {
    int& home = homes[aliases.group(variable.value)];
    home = meet(home, variable.device);
  }
  for (size_t i = 0; i < argument_homes.size(); ++i) {
    int& home = homes[aliases.group(program.arguments[i].value)];
    home = meet(home, argument_homes[i]);
  }
  const std::vector<std::vector<int>> by_body = homes_of_bodies(program, aliases, homes);
  int saved = 0;
  for (size_t i = 0; i < program.bodies.size(); ++i) {
    saved += run(program.bodies[i], aliases.argument_classes(i), by_body[i], schema_of);
  }
  return saved + Fuser(program, aliases, schema_of, homes).run();
}

}  // namespace

int fuse_updates(Program& program, const SchemaLookup& schema_of) { return run(program, {}, {}, schema_of); }

}  // namespace muster
