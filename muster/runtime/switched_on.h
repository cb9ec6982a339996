// Switches that the environment has.
#pragma once

namespace muster {

// False where this variable of the environment is "off". What is neither that nor "on" is taken as on, with a line in
// the log that says so; one that is not there, or empty, is on.
bool switched_on(const char* variable);

}  // namespace muster
