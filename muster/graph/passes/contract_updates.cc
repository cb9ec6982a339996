#include <cstring>
#include <limits>
#include <variant>
#include <vector>

#include "muster/graph/aliases.h"
#include "muster/graph/passes/passes.h"

namespace muster {
namespace {

constexpr const char* kAddInPlace = "aten::add_.Tensor";

// A whole number stays one: an integer tensor takes no other as its alpha.
using Number = std::variant<int64_t, double>;

// The number that a scalar argument or a number-constant stands for; nothing for anything else.
std::optional<Number> number_in(const Argument& argument) {
  if (auto* real = std::get_if<double>(&argument.value)) return *real;
  if (auto* whole = std::get_if<int64_t>(&argument.value)) return *whole;
  return std::nullopt;
}

std::optional<Number> number_in(const Constant& constant) {
  auto read = [&](auto number) {
    std::memcpy(&number, constant.bytes->data(), sizeof number);
    return number;
  };
  if (!constant.is_number) return std::nullopt;
  if (constant.spec.dtype == DType::kDouble) return read(double{});
  if (constant.spec.dtype == DType::kFloat) return static_cast<double>(read(float{}));
  if (constant.spec.dtype == DType::kLong) return read(int64_t{});
  return std::nullopt;
}

bool is_one(const Number& number) {
  return std::visit([](auto value) { return value == 1; }, number);
}

// Nothing where the negative does not exist.
std::optional<Number> negated(const Number& number) {
  if (number == Number(std::numeric_limits<int64_t>::min())) return std::nullopt;
  return std::visit([](auto value) { return Number(-value); }, number);
}

class Contractor {
 public:
  Contractor(Program& program, const Aliases& aliases, const SchemaLookup& schema_of)
      : program_(program),
        aliases_(aliases),
        schema_of_(schema_of),
        uses_(program.num_values),
        definition_(program.num_values, -1),
        constant_(program.num_values, -1),
        last_write_(aliases.num_groups(), -1) {
    for (ValueId output : program.outputs) {
      if (output != kNoValue) ++uses_[output];
    }
    for (size_t i = 0; i < program.constants.size(); ++i) constant_[program.constants[i].value] = static_cast<int>(i);
  }

  int run() {
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      for (const Argument& argument : program_.instructions[i].arguments) {
        for_each_value(argument, [&](ValueId id) { ++uses_[id]; });
      }
      for (const auto& result : program_.instructions[i].results) {
        for (ValueId value : result) {
          if (value != kNoValue) definition_[value] = static_cast<int>(i);
        }
      }
    }
    std::vector<bool> removed(program_.instructions.size());
    int count = 0;
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      if (int product = contract(i); product >= 0) {
        removed[product] = true;
        ++count;
      }
      for (int group : aliases_.written_groups(i)) last_write_[group] = static_cast<int>(i);
    }
    size_t number = 0;
    std::erase_if(program_.instructions, [&](const Instruction&) { return removed[number++]; });
    return count;
  }

 private:
  // Returns the multiplication that the update no longer needs, or -1.
  int contract(size_t number) {
    Instruction& update = program_.instructions[number];
    const std::string& name = program_.op_of(update).name;
    const bool subtracts = name == "aten::sub_.Tensor";
    if (!subtracts && name != kAddInPlace) return -1;
    if (update.arguments.size() != 3) return -1;  // The schema came with the program; it need not be libtorch's.
    auto* operand = std::get_if<ValueRef>(&update.arguments[1].value);
    if (!operand || uses_[operand->id] != 1 || definition_[operand->id] < 0) return -1;
    std::optional<Number> alpha = number_in(update.arguments[2]);
    if (!alpha || !is_one(*alpha)) return -1;

    const int product = definition_[operand->id];
    const Instruction& multiply = program_.instructions[product];
    if (multiply.device != update.device || multiply.arguments.size() != 2) return -1;
    auto* factor = std::get_if<ValueRef>(&multiply.arguments[0].value);
    std::optional<Number> scale = scale_of(multiply);
    if (scale && subtracts) scale = negated(*scale);
    if (!factor || !scale) return -1;
    // The product must still be one when the update comes, and nobody else may have changed what it is made of.
    if (aliases_.schema(multiply).writes() || aliases_.written(aliases_.group(operand->id)) ||
        last_write_[aliases_.group(factor->id)] > product)
      return -1;

    std::optional<std::string> schema = schema_of_ ? schema_of_(kAddInPlace) : std::nullopt;
    if (!schema) return -1;
    update.arguments[1] = multiply.arguments[0];
    std::visit([&](auto number) { update.arguments[2] = {number}; }, *scale);
    update.op = program_.intern_op(kAddInPlace, *schema);
    return product;
  }

  std::optional<Number> scale_of(const Instruction& multiply) const {
    const std::string& name = program_.op_of(multiply).name;
    if (name == "aten::mul.Scalar") return number_in(multiply.arguments[1]);
    if (name != "aten::mul.Tensor") return std::nullopt;
    auto* ref = std::get_if<ValueRef>(&multiply.arguments[1].value);
    if (!ref || constant_[ref->id] < 0 || aliases_.written(aliases_.group(ref->id))) return std::nullopt;
    return number_in(program_.constants[constant_[ref->id]]);
  }

  Program& program_;
  const Aliases& aliases_;
  const SchemaLookup& schema_of_;
  std::vector<int> uses_;        // by value
  std::vector<int> definition_;  // by value: the instruction that made it
  std::vector<int> constant_;    // by value: its number among the constants
  std::vector<int> last_write_;  // by group
};

int run(Program& program, const std::vector<int>& argument_classes, const SchemaLookup& schema_of) {
  const Aliases aliases(program, argument_classes);
  int removed = 0;
  for (size_t i = 0; i < program.bodies.size(); ++i) {
    removed += run(program.bodies[i], aliases.argument_classes(i), schema_of);
  }
  return removed + Contractor(program, aliases, schema_of).run();
}

}  // namespace

int contract_updates(Program& program, const SchemaLookup& schema_of) { return run(program, {}, schema_of); }

}  // namespace muster
