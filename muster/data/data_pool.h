#pragma once

#include "muster/base/elastic_pool.h"

namespace muster {

// The threads of all datasets of this process. They belong to no stage: whichever has work calls them, and they go back
// when there is none (that of a prefetch at its end). How many of them a stage calls is up to StageTimes.
ElasticPool& data_pool();

inline constexpr int kMostDataThreads = 256;

}  // namespace muster
