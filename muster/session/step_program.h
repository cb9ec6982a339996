#pragma once

#include <string>

#include "muster/graph/placement/placer.h"
#include "muster/graph/program.h"

namespace muster {

// Makes a traced program the step of a cluster: its variables are those of `container`, what nobody needs is left out,
// every instruction has a device, and what other tasks do for `driver` is in its parts. If there are any, what touches
// the driver's own variables is in parts, too, which it runs itself: so nobody ever waits for another task while it has
// a variable, and steps cannot wait for each other's variables in a circle. Throws Error{kInvalidArgument}.
Program make_step(const Program& program, const std::string& container, const PlacerOptions& devices,
                  const std::string& driver);

}  // namespace muster
