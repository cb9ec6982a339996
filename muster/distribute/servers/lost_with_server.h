#pragma once

#include "muster/base/status.h"

namespace muster {

// The same failure, but for one that says that a parameter server has no value of a variable. Each gets one when it is
// made, so that the server was restarted since, or took this process for gone, and whoever restored then did not ask
// for this one: kUnavailable, as of all that goes with a parameter server, which says what gives it a value again.
Status lost_with_server(const Status& failure);

}  // namespace muster
