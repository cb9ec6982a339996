// Runs one instruction ahead of time.
#pragma once

#include <optional>
#include <vector>

#include "muster/graph/program.h"
#include "muster/runtime/ops/op_catalog.h"

namespace muster {

// The results of an instruction whose operands are all constants of the program; nothing if it fails. For
// fold_constants.
std::optional<std::vector<Constant>> evaluate(const OpCatalog& catalog, const Program& program,
                                              const Instruction& instruction);

}  // namespace muster
