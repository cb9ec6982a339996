// Who called: for messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

// The innermost function on this thread's stack that belongs to the program and not to a library, as far as symbols
// tell: "a lambda in main", "train(at::Tensor)"; "" if they tell nothing.
std::string caller_outside_libraries();
// The same for a backtrace as libtorch's errors carry one. Its addresses are of this process.
std::string caller_outside_libraries(std::string_view backtrace);

// From the innermost function outwards. To take it costs little, to know what its addresses are of costs milliseconds.
std::vector<uintptr_t> stack_addresses();

// The innermost function of libtorch on the stack whose name has `name` in it, without its arguments; "" if there is
// none.
std::string libtorch_function(std::string_view name, const std::vector<uintptr_t>& stack = stack_addresses());

}  // namespace muster
