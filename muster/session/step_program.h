#pragma once

#include <string>

#include "muster/graph/placer.h"
#include "muster/graph/program.h"

namespace muster {

// Makes a traced program the step of a cluster: its variables are those of `container`, what nobody needs is left out,
// every instruction has a device, and what other tasks do for `driver` is in its parts. Throws Error{kInvalidArgument}.
Program make_step(const Program& program, const std::string& container, const PlacerOptions& devices,
                  const std::string& driver);

}  // namespace muster
