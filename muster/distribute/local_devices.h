// The devices of this process that a strategy is given.
#pragma once

#include <string>
#include <vector>

#include "muster/graph/device_spec.h"

namespace muster {

// Its full name. Throws Error{kInvalidArgument} for a device that this process has not.
std::string known_device(const std::string& device);
// Likewise, or that which stands for it where there is none, as outside of strategies.
std::string device_like(const std::string& wish);
// Without any: all GPUs of this process, else all its CPU devices. Throws for one that is there twice, too.
std::vector<std::string> known_devices(const std::vector<std::string>& wanted);
// "MirroredStrategy: 2 replicas, on GPU:0, GPU:1". Where the CPU is the only one: how there would be more.
std::string replicas_in_words(const std::string& strategy, const std::vector<std::string>& devices);

}  // namespace muster
