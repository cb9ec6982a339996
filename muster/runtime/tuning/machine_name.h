#pragma once

#include <c10/core/Device.h>

#include <string>
#include <string_view>

namespace muster {

// Of the processor that `cpuinfo` (the text of /proc/cpuinfo) is about: its model, or where it names none its numbers.
std::string processor_in(std::string_view cpuinfo);

// All that decides, besides the op and its operands, which implementation of it is fastest, and with which bits: the
// processor with what libtorch uses of it and the number of threads of this thread, or the GPU; and libtorch's version.
std::string machine_of(const c10::Device& device);

}  // namespace muster
