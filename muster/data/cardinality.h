// How many elements a dataset has, without reading it.
#pragma once

#include <cstdint>
#include <optional>

#include "muster/data/dataset.h"

namespace muster {

// As far as the description says: nothing is opened. A value.
struct Cardinality {
  std::optional<int64_t> count{};  // nothing: nobody knows, or there is no end
  bool infinite = false;

  bool operator==(const Cardinality&) const = default;
};

// Of one sequence, from its beginning. Nobody knows what files, generators, registered sources and filters give, nor
// what rows batches are divided into. Of a dataset that is handed out (ShardPolicy::kDynamic): of all readers together,
// if each of them has whole batches only.
Cardinality cardinality_of(const Dataset& dataset);

}  // namespace muster
