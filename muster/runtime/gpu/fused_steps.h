#pragma once

#include <vector>

#include "muster/runtime/executor/plan.h"

namespace muster {

// relu of a product of matrices and a bias becomes part of the product, which a GPU's libraries do in one kernel; its
// rounding is that of another kernel. REQUIRES: last uses are known.
void fuse_activations(std::vector<Step>& lane, const Program& program);

}  // namespace muster
