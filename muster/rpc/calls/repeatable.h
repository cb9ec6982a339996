#pragma once

#include "muster/graph/program.h"

namespace muster {

// Whether running it twice is the same as running it once: it writes no variable and leaves nothing for others. Then a
// request that was cut off can simply be made again, and nobody has to remember its answer.
bool repeatable(const Program& program);

}  // namespace muster
