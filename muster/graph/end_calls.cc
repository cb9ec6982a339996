#include "muster/graph/end_calls.h"

#include <algorithm>
#include <map>
#include <string>

#include "muster/graph/aliases.h"

namespace muster {
namespace {

constexpr int64_t kInABody = -1;

bool writes_variables(const Program& part) {
  const Aliases aliases(part);
  return std::any_of(part.variables.begin(), part.variables.end(),
                     [&](const VariableRef& variable) { return aliases.written(aliases.group(variable.value)); });
}

// Of each task, the first and the last part.
struct Ends {
  int64_t first = kInABody, last = kInABody;
};

void find_ends(const Program& program, const std::vector<Program>& parts, bool is_body,
               std::map<std::string, Ends>& ends) {
  for (const Instruction& instruction : program.instructions) {
    for (int32_t body : instruction.bodies) find_ends(program.bodies[body], parts, /*is_body=*/true, ends);
    if (program.op_of(instruction).name != kRemote.name) continue;
    const int64_t part = std::get<int64_t>(instruction.arguments[0].value);
    const int64_t number = is_body ? kInABody : part;
    auto [known, is_first] = ends.try_emplace(parts[part].task);
    if (is_first) known->second.first = number;
    known->second.last = number;
  }
}

}  // namespace

bool only_reads(const Program& part) {
  if (!part.arguments.empty()) return false;
  const Aliases aliases(part);
  for (size_t i = 0; i < part.instructions.size(); ++i) {
    if (aliases.acts(i) || aliases.draws(i) || !aliases.written_groups(i).empty()) return false;
  }
  return true;
}

EndCalls end_calls(const Program& program) {
  std::map<std::string, Ends> ends;
  find_ends(program, program.parts, /*is_body=*/false, ends);
  EndCalls calls;
  for (const auto& [task, end] : ends) {
    if (end.first != kInABody && only_reads(program.parts[end.first])) calls.openings.insert(end.first);
    if (end.last != kInABody && writes_variables(program.parts[end.last])) calls.closings.insert(end.last);
  }
  return calls;
}

}  // namespace muster
