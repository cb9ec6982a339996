#pragma once

#include <string>

#include "muster/base/status.h"

namespace muster {

// A task that answers as another incarnation than the one that was meant has lost what it had: variables, programs,
// sequences. Nothing else is said by this error, so whoever must decide whether a task was restarted asks `is_restart`
// and never the code, which other errors have, too.
Status restarted(const std::string& task, const std::string& message);
bool is_restart(const Status& status);

}  // namespace muster
