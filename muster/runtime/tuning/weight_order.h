// Which programs may have a weight in columns.
//
// A linear layer multiplies by the transpose of its weight. If the columns of the weight lie one after the other in
// memory, the rows of that transpose do, which is what kernels for products of matrices like best. So a program that
// does nothing else with a weight than to multiply by its transpose and to subtract its gradient takes it in this
// order.
#pragma once

#include <vector>

#include "muster/graph/aliases.h"
#include "muster/graph/program.h"

namespace muster {

// Whether a variable is a matrix that is worth the trouble.
bool may_be_in_columns(const TensorSpec& spec);

// For each value: the argument or variable that it is added to or subtracted from, if it is a product of matrices, or
// made of such and of numbers element by element (a sum, a multiple), and nothing else is done with it, so that it may
// have the order of its target. Else kNoValue. Replicas
// add the products of all of them, each to a weight of its own: of several targets, the one on the product's device.
std::vector<ValueId> targets_of_products(const Program& program);

// In how many products of the program, its bodies included, the matrix `input` (an argument or a variable) takes part:
// its transpose, or a copy of that, is the second factor, or it is the target. 0 if there is any use besides, or it
// leaves the program. `aliases` are the program's, `bodies` those of its bodies.
int products_in_any_order(ValueId input, const Program& program, const Aliases& aliases, BodyAliases& bodies);

}  // namespace muster
