// Unix sockets with names that are no files.
#pragma once

#include <chrono>
#include <string>

#include "muster/near/near_process.h"

namespace muster {

// Whose names are of the name space of the network: a process in another one does not find them. None of these waits,
// and what cannot be had is a Descriptor without a number.
Descriptor listen_at(const std::string& name);
Descriptor connect_to(const std::string& name);
Descriptor accept_from(const Descriptor& listener);

// For poll(), which may be called again: milliseconds, at most a minute.
int milliseconds_until(std::chrono::steady_clock::time_point until);

}  // namespace muster
