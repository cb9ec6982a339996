#include "muster/rpc/calls/repeatable.h"

#include "muster/graph/aliases.h"

namespace muster {

bool repeatable(const Program& program) {
  if (!program.parts.empty()) return false;
  const Aliases aliases(program);
  for (size_t i = 0; i < program.instructions.size(); ++i) {
    if (aliases.acts(i)) return false;
  }
  for (const VariableRef& variable : program.variables) {
    if (aliases.written(aliases.group(variable.value))) return false;
  }
  return true;
}

}  // namespace muster
