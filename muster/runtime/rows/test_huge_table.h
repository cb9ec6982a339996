// A table that no machine has the memory for.
#pragma once

#include <cstdint>

namespace muster::testing_support {

#ifdef __SANITIZE_THREAD__
inline constexpr int64_t kHugeTableGiB = 4;  // it has taken most addresses for itself
#else
inline constexpr int64_t kHugeTableGiB = 100;
#endif
inline constexpr int64_t kHugeTableRows = kHugeTableGiB << 30 >> 8;  // of 64 floats

}  // namespace muster::testing_support
