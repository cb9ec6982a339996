// Tensors and strings on the wire, and in files.
#pragma once

#include "muster/data/column.h"
#include "muster/data/dataset.pb.h"

namespace muster {

inline constexpr int kMostColumns = 10'000;  // of one element

void write_tensor(const at::Tensor& tensor, proto::Dataset::Tensor& out);
void write_column(const Column& column, proto::Dataset::Column& out);

// These take nothing on trust: throw Error{kInvalidArgument} for what is none.
at::Tensor read_tensor(const proto::Dataset::Tensor& in);
Column read_column(const proto::Dataset::Column& in);

}  // namespace muster
