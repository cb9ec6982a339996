// A GPU whose context is lost (a kernel that went astray, a card that fell off the bus) answers every later call of the
// process with an error, and nothing but a new process helps.
#pragma once

#include <string>

#include "muster/base/status.h"

namespace muster {

// Whether libtorch's words say so. From the first time on, this process has lost its device.
bool says_device_lost(const std::string& what);

// While it lives, what the GPU refuses to this thread does not mean that: it is asked for what it may not be able to
// do.
class [[nodiscard]] RefusalsExpected {
 public:
  RefusalsExpected();
  ~RefusalsExpected();
  RefusalsExpected(const RefusalsExpected&) = delete;
  RefusalsExpected& operator=(const RefusalsExpected&) = delete;
};

// Error{kUnavailable}, as of a task that is gone: whoever runs work here takes it to another one.
Status lost_device_status();

bool device_is_lost();
// Can be read from then on, for whoever waits with poll(). It stays open as long as the process. -1 if the system has
// no more.
int lost_device_file();
void throw_if_device_lost();  // lost_device_status()

}  // namespace muster
