// What the kernel says at once of a task that is gone.
#pragma once

#include <netdb.h>

#include <string>

#include "muster/base/status.h"

namespace muster {

// Whether connections to "host:port" are refused, at each address of the host to which this machine knows a way: no
// process has that port. Silence, or anybody who answers, is something else. Waits for a moment.
bool nobody_listens(const std::string& address);
bool nobody_listens(const addrinfo* places);

// The same failure, with the note that this was found; and whether it has that note.
Status nobody_there(const Status& failure);
bool is_nobody_there(const Status& status);

}  // namespace muster
