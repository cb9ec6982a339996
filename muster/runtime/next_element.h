#pragma once

#include <vector>

#include "muster/graph/program.h"
#include "muster/runtime/element_source.h"

namespace muster {

// The next element of a sequence. Throws Error{kOutOfRange} after the last one, and Error{kInvalidArgument} for one
// that does not look as it should.
Element next_element(ElementSource& source, const std::vector<TensorSpec>& specs);

}  // namespace muster
