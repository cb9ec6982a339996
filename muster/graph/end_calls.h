// The calls at other tasks that a step begins and ends with.
#pragma once

#include <cstdint>
#include <set>

#include "muster/graph/program.h"

namespace muster {

// Whether running it only looks at variables and needs nothing: it can be done earlier, once more, or for nothing.
bool only_reads(const Program& part);

// Numbers of parts that are begun in no body.
struct EndCalls {
  std::set<int64_t> openings{};  // the first that their task does for the step, if they only read
  std::set<int64_t> closings{};  // the last, if they write variables
};

// REQUIRES: `program` comes from split().
EndCalls end_calls(const Program& program);

}  // namespace muster
