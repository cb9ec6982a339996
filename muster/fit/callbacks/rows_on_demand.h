// Of callbacks that read whole variables.
#pragma once

#include <algorithm>

#include "muster/trace/variable.h"

namespace muster {

// Whoever reads one as a whole has all its rows made where it lives, and they stay.
inline bool has_rows_on_demand(const Variable& variable) {
  const auto on_demand = [](const Variable& one) { return one.state()->on_demand; };
  return on_demand(variable) || std::ranges::any_of(variable.copies(), on_demand);
}

}  // namespace muster
