#include "muster/runtime/ops/forward_indices.h"

#include <variant>

namespace muster {

bool found_by_forward(const Program& program, const Aliases& aliases, size_t index, size_t indices, size_t self) {
  const Instruction& backward = program.instructions[index];
  const auto* found = std::get_if<ValueRef>(&backward.arguments[indices].value);
  const auto* searched = std::get_if<ValueRef>(&backward.arguments[self].value);
  if (found == nullptr || searched == nullptr) return false;
  const int found_group = aliases.group(found->id), searched_group = aliases.group(searched->id);
  for (size_t i = index; i-- > 0;) {
    const Instruction& before = program.instructions[i];
    if (before.results.size() == 2 && before.results[1] == std::vector{found->id}) {
      const auto* given = std::get_if<ValueRef>(&before.arguments[0].value);
      return given != nullptr && given->id == searched->id &&
             program.op_of(before).name + "_backward" == program.op_of(backward).name;
    }
    if (aliases.writes(i, found_group) || aliases.writes(i, searched_group)) return false;
  }
  return false;
}

}  // namespace muster
