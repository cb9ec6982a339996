// Which values of a plan share memory, and who sees that memory besides its steps.
#pragma once

#include <vector>

#include "muster/graph/aliases.h"
#include "muster/graph/program.h"

namespace muster {

// Whoever leaves out, moves or shares what a step makes asks here whether anybody would notice. Immutable.
class PlanMemory {
 public:
  static constexpr int kNoGroup = -1;

  // That memory of a group comes from, or goes to.
  struct Seen {
    bool argument = false, variable = false, output = false;
    bool constant = false;  // a tensor of the program's own
    bool number = false;    // one that stands for a number

    bool anywhere() const { return argument || variable || output || constant || number; }
  };

  // `aliases` are those of the program, and outlive this.
  PlanMemory(const Program& program, const Aliases& aliases);

  // As in `aliases`. A value that was added to the program since then shares memory with nobody; it is in no group, and
  // neither is kNoValue.
  int group(ValueId value) const { return value >= 0 && value < recorded_ ? aliases_.group(value) : kNoGroup; }
  const Aliases& aliases() const { return aliases_; }

  // REQUIRES: a group of `aliases`.
  const Seen& seen(int group) const { return seen_[static_cast<size_t>(group)]; }

 private:
  const Aliases& aliases_;
  const ValueId recorded_;  // values of the program as it came
  std::vector<Seen> seen_;  // by group
};

}  // namespace muster
