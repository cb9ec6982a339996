#include "muster/runtime/tuning/weight_order.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <optional>
#include <string>

namespace muster {
namespace {

ValueId value_at(const Instruction& instruction, size_t position) {
  if (position >= instruction.arguments.size()) return kNoValue;
  const auto* ref = std::get_if<ValueRef>(&instruction.arguments[position].value);
  return ref != nullptr ? ref->id : kNoValue;
}

std::vector<ValueId> values_at(const Instruction& instruction, size_t position) {
  std::vector<ValueId> values;
  if (position >= instruction.arguments.size()) return values;
  for_each_value(instruction.arguments[position], [&](ValueId value) { values.push_back(value); });
  return values;
}

// Calls `visit(target, term)` for each tensor that the instruction adds to another one, element by element.
template <class Visit>
void for_each_update(const Program& program, const Instruction& instruction, const Visit& visit) {
  if (!form_of(program.op_of(instruction).name).adds) return;
  const std::vector<ValueId> targets = values_at(instruction, 0), terms = values_at(instruction, 1);
  for (size_t i = 0; i < targets.size() && i < terms.size(); ++i) visit(targets[i], terms[i]);
}

int uses_in(const Instruction& instruction, const Aliases& aliases, const absl::flat_hash_set<int>& groups) {
  int uses = 0;
  for (const Argument& argument : instruction.arguments) {
    for_each_value(argument, [&](ValueId value) { uses += value >= 0 && groups.contains(aliases.group(value)); });
  }
  return uses;
}

// Whether what the instruction makes lies as its operands do, if they all lie alike.
bool keeps_order(const Program& program, const Instruction& instruction) {
  const std::string& op = program.op_of(instruction).name;
  const OpFamily& family = family_of(op);
  return op == kCopy.name || (family.any_order && !family.view);
}

// From the updates back to the products.
class ProductTargets {
 public:
  explicit ProductTargets(const Program& program)
      : program_(program), flows_(program.num_values), targets_(program.num_values, kNoValue) {
    for (const ProgramArgument& argument : program.arguments) flows_[argument.value].is_input = true;
    for (const VariableRef& variable : program.variables) flows_[variable.value].is_input = true;
    auto note_number = [&](const auto& input) { flows_[input.value].is_number = input.spec.sizes.empty(); };
    for (const ProgramArgument& argument : program.arguments) {
      if (!argument.any) note_number(argument);
    }
    std::ranges::for_each(program.variables, note_number);
    std::ranges::for_each(program.constants, note_number);
    for (const Instruction& instruction : program.instructions) find_products(instruction);
    for (ValueId output : program.outputs) {
      if (output >= 0) ++flows_[output].uses;
    }
    for (auto instruction = program.instructions.rbegin(); instruction != program.instructions.rend(); ++instruction) {
      follow(*instruction);
    }
  }

  std::vector<ValueId> take() { return std::move(targets_); }

 private:
  struct Target {
    ValueId value;
    int32_t device;  // of the update
    bool operator==(const Target&) const = default;
  };
  struct Flow {
    bool is_input = false;     // an argument or a variable
    bool is_number = false;    // an input or a constant without dimensions
    bool of_products = false;  // and numbers, element by element, or a product itself
    int uses = 0, followed = 0;
    std::vector<Target> targets{};  // that it, or what is made of it, is added to
  };

  void find_products(const Instruction& instruction) {
    bool any = false, others = false;
    for (const Argument& argument : instruction.arguments) {
      for_each_value(argument, [&](ValueId value) {
        if (value < 0) return;
        Flow& flow = flows_[value];
        ++flow.uses;
        any = any || flow.of_products;
        others = others || !(flow.of_products || flow.is_number);
      });
    }
    const bool is_product = form_of(program_.op_of(instruction).name).product == MatrixProduct::kProduct;
    if (!is_product && !(any && !others && keeps_order(program_, instruction))) return;
    if (const ValueId result = instruction.results[0][0]; result >= 0) flows_[result].of_products = true;
  }

  void follow(const Instruction& instruction) {
    for_each_update(program_, instruction, [&](ValueId target, ValueId term) {
      if (target < 0 || term < 0 || !flows_[target].is_input || !flows_[term].of_products) return;
      add(term, {{target, instruction.device}});
    });
    if (instruction.results.empty() || instruction.results[0].empty() || instruction.results[0][0] < 0) return;
    const ValueId result = instruction.results[0][0];
    const Flow& flow = flows_[result];
    if (!flow.of_products || flow.targets.empty() || flow.followed != flow.uses) return;
    const auto here = std::find_if(flow.targets.begin(), flow.targets.end(),
                                   [&](const Target& target) { return target.device == instruction.device; });
    targets_[result] = (here != flow.targets.end() ? *here : flow.targets[0]).value;
    if (!keeps_order(program_, instruction)) return;
    const std::vector<Target> targets = flow.targets;
    for (const Argument& argument : instruction.arguments) {
      for_each_value(argument, [&](ValueId value) {
        if (flows_[value].of_products) add(value, targets);
      });
    }
  }

  void add(ValueId term, const std::vector<Target>& targets) {
    Flow& flow = flows_[term];
    ++flow.followed;
    for (const Target& target : targets) {
      if (std::find(flow.targets.begin(), flow.targets.end(), target) == flow.targets.end()) {
        flow.targets.push_back(target);
      }
    }
  }

  const Program& program_;
  std::vector<Flow> flows_;  // by value
  std::vector<ValueId> targets_;
};

// For each value: the argument or variable whose transpose it is, or a copy of its transpose, which lies as that does:
// replicas on other devices multiply by copies. Else kNoValue.
std::vector<ValueId> transposed_inputs(const Program& program) {
  std::vector<ValueId> inputs(program.num_values, kNoValue), transposed(program.num_values, kNoValue);
  for (const ProgramArgument& argument : program.arguments) inputs[argument.value] = argument.value;
  for (const VariableRef& variable : program.variables) inputs[variable.value] = variable.value;
  for (const Instruction& instruction : program.instructions) {
    const std::string& op = program.op_of(instruction).name;
    const bool transposes = form_of(op).transposes;
    if (!transposes && op != kCopy.name) continue;
    const ValueId of = value_at(instruction, 0), result = instruction.results[0][0];
    if (of >= 0 && result >= 0) transposed[result] = (transposes ? inputs : transposed)[of];
  }
  return transposed;
}

// The products, or nothing if any other use was found.
std::optional<int> count_products(ValueId input, const Program& program, const Aliases& aliases, BodyAliases& bodies) {
  const std::vector<ValueId> targets = targets_of_products(program), transposed = transposed_inputs(program);
  absl::flat_hash_set<int> groups{aliases.group(input)};  // its memory, and that of its copies
  for (ValueId value = 0; value < program.num_values; ++value) {
    if (transposed[value] == input) groups.insert(aliases.group(value));
  }
  auto leaves = [&](ValueId output) { return output >= 0 && groups.contains(aliases.group(output)); };
  if (std::any_of(program.outputs.begin(), program.outputs.end(), leaves)) return std::nullopt;
  int products = 0;
  for (const Instruction& instruction : program.instructions) {
    const std::string& op = program.op_of(instruction).name;
    const OpForm& form = aliases.schema(instruction).known;
    if (form.product == MatrixProduct::kProduct) {
      const ValueId result = instruction.results[0][0];
      products += result >= 0 && targets[result] == input;
    }
    const int uses = uses_in(instruction, aliases, groups);
    if (uses == 0) continue;
    auto is_transposed = [&](ValueId value) { return value >= 0 && transposed[value] == input; };
    int understood = 0;
    if ((form.transposes || op == kCopy.name) && is_transposed(instruction.results[0][0])) {
      ++understood;
    } else if (form.product != MatrixProduct::kNone &&
               is_transposed(value_at(instruction, second_factor(form.product)))) {
      ++products;
      ++understood;
    } else if (op == kLoop.name || op == kCond.name) {
      // The state of a loop is what each trip makes of it, so a weight must not be one.
      for (ValueId value : values_at(instruction, op == kLoop.name ? 2 : 1)) understood += value == input;
      for (size_t b = 0; b < instruction.bodies.size(); ++b) {
        const auto number = static_cast<size_t>(instruction.bodies[b]);
        const Program& body = program.bodies[number];
        const Aliases& inside = bodies.of(program, aliases, number);
        const std::vector<ValueId> inputs = body_inputs(program, instruction, b);
        for (size_t i = 0; i < inputs.size() && i < body.arguments.size(); ++i) {
          if (inputs[i] != input) continue;
          const std::optional<int> within = count_products(body.arguments[i].value, body, inside, bodies);
          if (!within) return std::nullopt;
          products += *within;
        }
      }
    } else {
      for_each_update(program, instruction, [&](ValueId target, ValueId term) {
        if (target == input && term >= 0 && targets[term] == input) ++understood;
      });
    }
    if (understood != uses) return std::nullopt;
  }
  return products;
}

}  // namespace

bool may_be_in_columns(const TensorSpec& spec) {
  constexpr int64_t kWorthIt = 16 << 10;   // elements
  constexpr int64_t kTooLarge = 64 << 20;  // bytes, of which a trial makes several copies
  return (spec.dtype == DType::kFloat || spec.dtype == DType::kDouble) && spec.sizes.size() == 2 && spec.sizes[0] > 1 &&
         spec.sizes[1] > 1 && spec.elements() >= kWorthIt && spec.bytes() < kTooLarge;
}

std::vector<ValueId> targets_of_products(const Program& program) { return ProductTargets(program).take(); }

int products_in_any_order(ValueId input, const Program& program, const Aliases& aliases, BodyAliases& bodies) {
  return count_products(input, program, aliases, bodies).value_or(0);
}

}  // namespace muster
