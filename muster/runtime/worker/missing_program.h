#pragma once

#include <cstdint>
#include <string>

#include "muster/base/status.h"

namespace muster {

// A program that a task does not have, or no more: the lease of its owner has ended there, or a reset has dropped it.
// Nothing of the run has happened, so whoever has the program may register it and run it again.
Status missing_program(const std::string& task, uint64_t handle);
bool is_missing_program(const Status& status);

}  // namespace muster
