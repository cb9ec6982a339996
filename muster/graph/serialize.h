// Programs to bytes and back.
#pragma once

#include <string>
#include <string_view>

#include "muster/graph/program.h"

namespace muster {

inline constexpr int kProgramVersion = 1;

std::string serialize(const Program& program);

// Throws Error{kDataLoss} for bytes that are no program and Error{kFailedPrecondition} for a version that is not ours.
// The result is well-formed as a message only: run check() (checker.h) on what comes from a stranger.
Program parse_program(std::string_view bytes);

}  // namespace muster
