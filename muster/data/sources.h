// Datasets, opened.
#pragma once

#include <memory>
#include <string>

#include "muster/runtime/element_source.h"

namespace muster {

// Opens what Dataset::serialize wrote: an OpenSource. `worker` outlives the result. Throws Error.
std::unique_ptr<ElementSource> open_source(const std::string& description, Worker& worker);

}  // namespace muster
