#pragma once

#include "muster/graph/aliases.h"
#include "muster/graph/program.h"

namespace muster {

// What a program does with a variable.
struct VariableUses {
  bool written = false;
  bool overwritten = false;   // first touched by a whole copy: needs no value before
  bool by_rows = true;        // nobody but row ops (row_ops.h) touches it
  bool read_whole = false;    // somebody else reads it, or it leaves the run
  bool touched_once = false;  // by one instruction, and it does not leave the run
};

// `aliases` are the program's, `bodies` those of its bodies.
VariableUses uses_of(const VariableRef& variable, const Program& program, const Aliases& aliases, BodyAliases& bodies);

}  // namespace muster
