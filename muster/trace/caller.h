// Who called, for messages.
#pragma once

#include <string>

namespace muster {

// The innermost function on the stack of this thread that is neither libtorch's nor Muster's, as far as its symbols
// tell; "an unknown function" where they do not.
std::string caller_outside_libraries();

}  // namespace muster
