// What an instruction has as plain data, as libtorch takes it.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include "muster/graph/program.h"

namespace muster {

c10::TypePtr strip_optional(c10::TypePtr type);

enum class ListKind { kPlain, kTensors, kOptionalTensors };

ListKind list_kind(const c10::TypePtr& type);

// An argument without tensors for a parameter of this type. Throws Error{kInvalidArgument} if it does not fit.
c10::IValue plain_argument(const Argument& argument, const c10::TypePtr& type, at::Device device);

}  // namespace muster
