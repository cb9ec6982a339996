#include "muster/data/serialize_columns.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {

void write_tensor(const at::Tensor& tensor, proto::Dataset::Tensor& out) {
  PlainTensors plain;
  const at::Tensor whole = tensor.to(at::kCPU).contiguous().resolve_conj().resolve_neg();
  const TensorSpec spec = spec_of(whole);
  out.mutable_spec()->set_dtype(static_cast<int>(spec.dtype));
  out.mutable_spec()->mutable_sizes()->Add(spec.sizes.begin(), spec.sizes.end());
  if (whole.nbytes() > 0) out.set_data(whole.const_data_ptr(), whole.nbytes());
}

void write_column(const Column& column, proto::Dataset::Column& out) {
  if (!column.holds_strings()) return write_tensor(column.tensor(), *out.mutable_tensor());
  const Strings& strings = column.strings();
  out.mutable_strings()->mutable_sizes()->Add(strings.sizes().begin(), strings.sizes().end());
  for (size_t i = 0; i < strings.count(); ++i) out.mutable_strings()->add_values(std::string(strings[i]));
}

at::Tensor read_tensor(const proto::Dataset::Tensor& in) {
  constexpr int kMostDimensions = 64;
  const std::optional<DType> dtype = dtype_from_number(in.spec().dtype());
  if (!dtype || in.spec().sizes_size() > kMostDimensions) {
    throw invalid_argument("dataset: a tensor of the element type ", in.spec().dtype(), " with ",
                           in.spec().sizes_size(), " dimensions, expected a known type and at most ", kMostDimensions);
  }
  TensorSpec spec{*dtype, {in.spec().sizes().begin(), in.spec().sizes().end()}};
  // As if no dimension were 0: libtorch multiplies them all for the strides.
  int64_t most = bytes_per_element(*dtype);
  for (const int64_t size : spec.sizes) {
    if (size < 0 || (size > 0 && most > std::numeric_limits<int64_t>::max() / size)) {
      throw invalid_argument("dataset: a tensor that has ", size, " elements in one dimension");
    }
    most *= std::max<int64_t>(size, 1);
  }
  if (spec.bytes() != static_cast<int64_t>(in.data().size())) {
    throw invalid_argument("dataset: ", in.data().size(), " bytes for ", spec.to_string(), ", expected ", spec.bytes());
  }
  PlainTensors plain;
  at::Tensor tensor = at::empty(spec.sizes, at::TensorOptions(scalar_type_of(spec.dtype)));
  if (tensor.nbytes() > 0) std::memcpy(tensor.mutable_data_ptr(), in.data().data(), in.data().size());
  return tensor;
}

Column read_column(const proto::Dataset::Column& in) {
  if (!in.has_strings()) return read_tensor(in.tensor());
  Strings strings;
  for (const std::string& value : in.strings().values()) strings.append(value);
  for (const int64_t size : in.strings().sizes()) {
    if (size < 0) throw invalid_argument("dataset: strings of a size of ", size);
  }
  strings.shape({in.strings().sizes().begin(), in.strings().sizes().end()});
  return strings;
}

}  // namespace muster
