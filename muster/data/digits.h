// Made-up pictures of digits, to learn from without a download.
#pragma once

#include <cstdint>

namespace muster {

inline constexpr int64_t kDigitPoints = 28 * 28;

// Writes picture number `index` of the series `seed` to `points` (kDigitPoints of them, from 0 to 1) and returns its
// label. The same everywhere and at any time: a digit of seven strokes, moved a little, in noise.
int draw_digit(uint64_t seed, uint64_t index, float* points);

}  // namespace muster
