// Ops in lower precision where that does no harm, as torch.autocast chooses them.
#pragma once

#include <ATen/autocast_mode.h>

#include <array>

namespace muster {

// For ops of this thread on CPUs and GPUs, until it ends: bfloat16, which is what CompileOptions::mixed_precision does
// to forward(). In a loop of one's own, inside of a traced function:
//   at::Tensor scores;
//   {
//     const muster::Autocast autocast;
//     scores = net->forward(x).to(torch::kFloat);
//   }
class [[nodiscard]] Autocast {
 public:
  Autocast() {
    for (size_t i = 0; i < kDevices.size(); ++i) {
      before_[i] = {at::autocast::is_autocast_enabled(kDevices[i]), at::autocast::get_autocast_dtype(kDevices[i])};
      at::autocast::set_autocast_dtype(kDevices[i], at::kBFloat16);
      at::autocast::set_autocast_enabled(kDevices[i], true);
    }
    // What it keeps of weights would outlive the trace.
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~Autocast() {
    for (size_t i = 0; i < kDevices.size(); ++i) {
      at::autocast::set_autocast_enabled(kDevices[i], before_[i].enabled);
      at::autocast::set_autocast_dtype(kDevices[i], before_[i].type);
    }
    at::autocast::set_autocast_cache_enabled(cached_before_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  static constexpr std::array<c10::DeviceType, 2> kDevices{at::kCPU, at::kCUDA};
  struct Before {
    bool enabled;
    at::ScalarType type;
  };
  std::array<Before, 2> before_{};
  const bool cached_before_ = at::autocast::is_autocast_cache_enabled();
};

}  // namespace muster
