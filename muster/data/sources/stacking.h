#pragma once

#include <optional>
#include <span>

#include "muster/data/column.h"

namespace muster {

// Elements as one, each a row of it. Without padding they must be of one shape; with it smaller ones are filled up (and
// strings with ""). Throws Error{kInvalidArgument} in the name of `step`.
Columns stacked(std::span<const Columns> rows, const char* step, std::optional<double> padding = {});

// Batches as one, the rows of each after those of the one before. REQUIRES: they have the same columns, and there is
// one.
Columns joined(std::span<const Columns> batches);

// One of its rows again. REQUIRES: row < column.sizes()[0].
Column row_of(const Column& column, int64_t row);

}  // namespace muster
