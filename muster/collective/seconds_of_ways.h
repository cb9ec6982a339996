// What ranks find out together when a group is formed: which way of a sum is the fastest.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "muster/runtime/worker/collectives.h"

namespace muster {

// So much two measurements of the same thing differ by on a busy machine.
inline constexpr double kAsGood = 1.1;

// Seconds that a sum of these values takes in each of so many ways: the best of so many times, as it was for the
// slowest rank. All ranks call this at the same time and get the same numbers. `take` makes this rank go that way from
// now on; in the end it goes the first one.
std::vector<double> seconds_of_ways(Collectives& group, const at::Tensor& values, int times, size_t ways,
                                    const std::function<void(size_t way)>& take);

// The first one, unless another is faster than by accident.
size_t fastest_of(const std::vector<double>& seconds);

}  // namespace muster
