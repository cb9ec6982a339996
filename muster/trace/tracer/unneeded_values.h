// Spares a trace the work of large ops, whose values nobody looks at.
//
// A program says what a function does, not what comes out of it. So the results of an op need their shape, their type
// and their order in memory, which libtorch's shape functions (its Meta device) tell without a look at an element; they
// are zeros in pages that nobody touches. A step of a large net is traced in milliseconds then, and in hardly any
// memory. Where a value is needed after all, trace() begins anew and computes everything.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "muster/graph/op_schema.h"

namespace muster {

// Replaces the arguments on the stack by results of zeros, unless the operands have fewer than `bytes`. What the op
// writes to stays as it is. False, and the stack is as it was, for views and where libtorch cannot tell what the
// results look like: then the op has to be called.
bool leave_values_out(const c10::OperatorHandle& op, const OpSchema& schema, size_t bytes,
                      std::vector<c10::IValue>& stack);

}  // namespace muster
