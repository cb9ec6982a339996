// Ops in lower precision where that does no harm, as torch.autocast chooses them.
#pragma once

#include <ATen/autocast_mode.h>

namespace muster {

// For ops of this thread, until it ends.
class Autocast {
 public:
  Autocast() {
    for (const c10::DeviceType device : {at::kCPU, at::kCUDA}) {
      at::autocast::set_autocast_dtype(device, at::kBFloat16);
      at::autocast::set_autocast_enabled(device, true);
    }
    // What it keeps of weights would outlive the trace.
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~Autocast() {
    for (const c10::DeviceType device : {at::kCPU, at::kCUDA}) at::autocast::set_autocast_enabled(device, false);
    at::autocast::set_autocast_cache_enabled(true);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

}  // namespace muster
