#include "muster/runtime/gpu/wait_for_device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace muster {

void wait_for_device(const at::Device& device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).getStream(device).synchronize();
}

}  // namespace muster
