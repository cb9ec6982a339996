#pragma once

#include <string_view>

#include "muster/base/status.h"

namespace muster {

// The Error for a system call on `path` that failed with this errno: `file "/a/b": write: No space left on device`.
// A full disk is kResourceExhausted, and one that was away for a moment, or looks so, kUnavailable. Never kDataLoss:
// that is said of what was read and is wrong.
[[nodiscard]] Error file_error(std::string_view path, std::string_view action, int error);

}  // namespace muster
