#pragma once

#include <optional>
#include <string>

#include "muster/base/status.h"

namespace muster {

// That a task has no value of a variable: nobody has given it one, or the task was restarted since. Whoever must decide
// whether an error says that asks `variable_without_value` and never the code, which other errors have, too.
Status no_value(StatusCode code, const std::string& variable, const std::string& message);
// Which one it is, with its container; nothing: the error says something else.
std::optional<std::string> variable_without_value(const Status& status);

}  // namespace muster
