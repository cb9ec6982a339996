#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

namespace muster {

// The bytes of a tensor from `offset` on: as many as are at hand, at least one. They are asked for from front to back,
// from the front again if a file has to be written again, and used until the next are.
using TensorPieces = std::function<std::span<const std::byte>(int64_t offset)>;

}  // namespace muster
