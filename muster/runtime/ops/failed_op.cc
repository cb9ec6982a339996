#include "muster/runtime/ops/failed_op.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <set>

#include "muster/runtime/ops/op_guards.h"
#include "muster/runtime/worker/worker.h"

namespace muster {
namespace {

constexpr std::string_view kUnfitOperand = "unfit operand of ";  // before the op, in the detail

// Without the container of its job.
std::string name_of_user(const std::string& name) {
  return name.substr(name_in_container(container_of(name), "").size());
}

bool uses(const Instruction& instruction, const std::set<ValueId>& values) {
  bool any = false;
  for (const Argument& argument : instruction.arguments) {
    for_each_value(argument, [&](ValueId value) { any = any || values.contains(value); });
  }
  return any;
}

// What an optimizer writes to, it does together with its slots and its rate, which nobody has to hear of who has looked
// up an id that does not exist.
struct FoundVariables {
  std::set<std::string> read, written_with_others;

  bool empty() const { return read.empty() && written_with_others.empty(); }
};

void add_variables(const Program& program, const Instruction& instruction, FoundVariables& names) {
  const bool writes = program.op_of(instruction).schema.find('!') != std::string::npos;
  for (const VariableRef& variable : program.variables) {
    if (!uses(instruction, {variable.value})) continue;
    (writes ? names.written_with_others : names.read).insert(name_of_user(variable.name));
  }
}

// Those that are used together with these values.
void add_variables_beside(const Program& program, std::set<ValueId> values, const std::vector<Program>& parts,
                          FoundVariables& names) {
  for (const Instruction& instruction : program.instructions) {
    if (!uses(instruction, values)) continue;
    if (program.op_of(instruction).name == kCopy.name) values.insert(instruction.results[0][0]);
    add_variables(program, instruction, names);
    if (program.op_of(instruction).name != kRemote.name) continue;
    const auto number = static_cast<size_t>(std::get<int64_t>(instruction.arguments[0].value));
    const auto& inputs = std::get<ArgumentList>(instruction.arguments[1].value);
    if (number >= parts.size()) continue;
    std::set<ValueId> there;
    for (size_t i = 0; i < inputs.size() && i < parts[number].arguments.size(); ++i) {
      const auto* input = std::get_if<ValueRef>(&inputs[i].value);
      if (input != nullptr && values.contains(input->id)) there.insert(parts[number].arguments[i].value);
    }
    add_variables_beside(parts[number], there, {}, names);
  }
}

// What the op's rules say about its operands; "" if they hold, or if it has none.
std::string unfit_operand(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack) {
  if (stack.size() != op.schema().arguments().size()) return "";
  const auto on_cpu = [](const c10::IValue& value) { return !value.isTensor() || value.toTensor().is_cpu(); };
  if (!std::all_of(stack.begin(), stack.end(), on_cpu)) return "";
  try {
    if (const auto guard = guard_of(op, {}, at::DeviceType::CUDA)) guard->check(stack);
  } catch (const Error& error) {
    return error.status().message();
  } catch (const std::exception&) {  // the op has taken some of them
  }
  return "";
}

}  // namespace

std::vector<std::string> variables_about(const Program& program, const Instruction& instruction) {
  FoundVariables names;
  add_variables(program, instruction, names);
  if (names.empty()) {
    std::set<ValueId> results;
    for (const auto& values : instruction.results) results.insert(values.begin(), values.end());
    results.erase(kNoValue);
    add_variables_beside(program, results, program.parts, names);
  }
  const std::set<std::string>& chosen = names.read.empty() ? names.written_with_others : names.read;
  return {chosen.begin(), chosen.end()};
}

Status explained(const Status& status, const Program& program, const Instruction& instruction,
                 const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack) {
  if (status.code() != StatusCode::kInvalidArgument && status.code() != StatusCode::kOutOfRange) return status;
  constexpr size_t kMostNames = 4;
  std::string words = status.message();
  while (words.ends_with('.') || words.ends_with('\n')) words.pop_back();
  const std::string unfit = unfit_operand(op, stack);
  // libtorch's words of it have the same number, or what stands for one that is no index.
  if (!unfit.empty() && words.find("is out of bounds") != std::string::npos) words = unfit;
  if (!unfit.empty() && words.find(unfit) == std::string::npos) str_append(words, "; ", unfit);
  std::vector<std::string> names = variables_about(program, instruction);
  const size_t more = names.size() - std::min(names.size(), kMostNames);
  names.resize(names.size() - more);
  if (!names.empty()) {
    const std::string variables =
        str_cat("variable", names.size() == 1 ? "" : "s", " \"", absl::StrJoin(names, "\", \""), "\"",
                more == 0 ? "" : str_cat(" and ", more, " more"));
    // What was looked up is wrong by the measure of the table, so that comes first. A label is wrong by no variable.
    const bool asked_too_far = unfit.empty() ? status.code() == StatusCode::kOutOfRange
                                             : program.op_of(instruction).name.starts_with("aten::embedding");
    words = asked_too_far ? str_cat(variables, ": ", words) : str_cat(words, "; of ", variables);
  }
  return Status(status.code(), words, status.task(),
                unfit.empty() ? status.detail() : str_cat(kUnfitOperand, program.op_of(instruction).name));
}

std::optional<std::string> op_with_unfit_operand(const Status& status) {
  if (!status.detail().starts_with(kUnfitOperand)) return std::nullopt;
  return status.detail().substr(kUnfitOperand.size());
}

}  // namespace muster
