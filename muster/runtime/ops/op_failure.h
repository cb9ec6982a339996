#pragma once

#include <string>

#include "muster/base/status.h"

namespace muster {

// What the exception that is being handled says: libtorch has its own ways to say that memory is short, that a kernel
// is missing or that a value is bad. REQUIRES: called in a catch block.
Status status_of_op_failure();

// libtorch's say what they are about in their first line; stacks and advice follow.
inline std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace muster
