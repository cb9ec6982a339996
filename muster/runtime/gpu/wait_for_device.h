#pragma once

#include <c10/core/Device.h>

namespace muster {

// A GPU is told what to do and does it later: waits until it has done what this thread has told it so far. Of a CPU
// nothing is left to be done.
void wait_for_device(const at::Device& device);

}  // namespace muster
