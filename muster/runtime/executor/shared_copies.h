#pragma once

#include "muster/runtime/executor/plan.h"
#include "muster/runtime/executor/plan_memory.h"

namespace muster {

// A device that has its memory in common with that of a copy's source can read it there, though somebody writes to it
// later: if what it reads is read before. Such copies become Step::Copy::share. So a replica reads the parameters of
// central storage where they are; they change when all replicas have made their gradients. REQUIRES: the lanes are
// complete, with what they await, and have a step for each instruction of the program that `memory` is of.
void share_copies(Plan& plan, const PlanMemory& memory);

}  // namespace muster
