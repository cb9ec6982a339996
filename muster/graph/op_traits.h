// What the passes ask about an op. What a schema does not say is in op_table.h.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "muster/graph/op_schema.h"
#include "muster/graph/program.h"

namespace muster {

// The op of program.h with this name; null for one that libtorch must have.
const ControlOp* own_op(std::string_view op_name);

bool is_control(std::string_view op_name);  // kCond, kLoop, kLoopGradient: what has bodies

bool is_communication(std::string_view op_name);  // kRemote, kSend, kReceive, kCollective

// Takes random numbers. libtorch has ops that do so without a Generator among their arguments.
bool is_random(const OpSchema& schema);

// Returns memory that nobody has written: equal calls are not equal, and a copy of the result is not the result.
bool leaves_memory_unset(std::string_view op_name);

// Its result is nothing but another shape on its argument's memory, always. (reshape, to and contiguous copy
// sometimes.)
bool is_view(std::string_view op_name);

// The view that shows, with the same first arguments, what this op makes of its tensor. A value of a program keeps its
// shape, so a tensor whose shape changes in place (t_) is another value from then on. And the strides that
// _reshape_alias is given are those of one tensor, where an argument may arrive with others.
std::optional<std::string> view_like(std::string_view op_name);

// Changes the shape of a tensor in place; whoever holds that tensor sees another shape.
bool changes_shape_in_place(std::string_view op_name);

// Only its arguments decide about its results, and running it does nothing else.
bool is_pure(const OpSchema& schema);

}  // namespace muster
