// What honest programs hand to ops.
#pragma once

#include <ATen/core/ivalue.h>

#include <map>
#include <string>
#include <vector>

namespace muster::testing_support {

using Calls = std::map<std::string, std::vector<std::vector<c10::IValue>>>;  // by op, with overload

// Runs layers, losses and decompositions of many kinds, forwards and backwards, and notes every op that is called below
// autograd, which is what a tracer would record. In a process of its own: whoever has run a convolution has threads,
// and cannot fork.
Calls honest_calls();

}  // namespace muster::testing_support
