// Who called, for messages.
#pragma once

#include <string>
#include <string_view>

namespace muster {

// The innermost function on the stack of this thread that is neither libtorch's nor Muster's, as far as its symbols
// tell: "train in my_program", or "my_program+0x1234", which addr2line understands.
std::string caller_outside_libraries();

// Whether an exported function of libtorch with `name` in its full name is on the stack of this thread.
bool called_by_libtorch(std::string_view name);

}  // namespace muster
