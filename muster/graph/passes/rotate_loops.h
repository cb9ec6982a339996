#pragma once

#include "muster/graph/program.h"

namespace muster {

// Lets a loop of training steps make one call per task and trip instead of two. A trip reads the variables of a task in
// a part at its beginning and writes them in a part at its end; here the last part also does what the first part of the
// next trip would do, whose results become state of the loop, and the first reading is done before the loop. After the
// last trip the variables are read once more than needed.
// Only loops with a fixed number of trips, and only readings that need nothing of the trip. Returns how many readings
// were moved. REQUIRES: `program` comes from split().
int rotate_loops(Program& program);

}  // namespace muster
