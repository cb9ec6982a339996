#include "muster/trace/initial_value.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <limits>
#include <mutex>

#include "muster/base/status.h"
#include "muster/runtime/memory/memory_pool.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/op_failure.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

uint64_t drawn_seed() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  std::lock_guard lock(generator.mutex());
  return at::check_generator<at::CPUGeneratorImpl>(generator)->random64();
}

TensorSpec checked_spec(at::ScalarType dtype, std::vector<int64_t> sizes) {
  TensorSpec spec{dtype_of(dtype), std::move(sizes)};
  int64_t bytes = bytes_per_element(spec.dtype);
  for (const int64_t size : spec.sizes) {
    if (size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes)) continue;
    throw invalid_argument("an initial value of ", spec.to_string(),
                           ": expected sizes of 0 or more, and no more bytes than an int64 counts");
  }
  return spec;
}

// A system gives out more addresses than it has memory for, and ends whoever uses them.
void expect_memory_for(const TensorSpec& spec) {
  constexpr int64_t kWorthAsking = 1 << 30;
  if (spec.bytes() < kWorthAsking) return;
  const int64_t most = usual_memory();
  if (spec.bytes() <= most) return;
  throw resource_exhausted("an initial value of ", spec.to_string(), " needs ", spec.bytes(),
                           " bytes, and here is memory for ", most);
}

at::Tensor memory_for(const TensorSpec& spec) {
  expect_memory_for(spec);
  try {
    return at::empty(spec.sizes, at::TensorOptions(scalar_type_of(spec.dtype)));
  } catch (const c10::Error&) {
    throw Error(status_of_op_failure());
  }
}

}  // namespace

InitialValue::InitialValue(const at::Tensor& value) : spec_(spec_of(value)), value_(value.detach()) {}

InitialValue InitialValue::constant(std::vector<int64_t> sizes, double value, at::ScalarType dtype) {
  InitialValue made(checked_spec(dtype, std::move(sizes)));
  made.fill_ = Fill{.kind = Fill::kConstant, .a = value};
  return made;
}

InitialValue InitialValue::uniform(std::vector<int64_t> sizes, double low, double high, std::optional<uint64_t> seed) {
  if (!(low <= high) || !(high - low <= std::numeric_limits<float>::max())) {
    throw invalid_argument("InitialValue::uniform: from ", low, " to ", high,
                           ", expected numbers with the lower one first and no further apart than floats are");
  }
  InitialValue made(checked_spec(at::kFloat, std::move(sizes)));
  made.fill_ = Fill{.kind = Fill::kUniform, .a = low, .b = high, .seed = seed ? *seed : drawn_seed()};
  return made;
}

InitialValue InitialValue::normal(std::vector<int64_t> sizes, double mean, double deviation,
                                  std::optional<uint64_t> seed) {
  if (!(deviation >= 0)) {
    throw invalid_argument("InitialValue::normal: the deviation is ", deviation, ", expected 0 or more");
  }
  InitialValue made(checked_spec(at::kFloat, std::move(sizes)));
  made.fill_ = Fill{.kind = Fill::kNormal, .a = mean, .b = deviation, .seed = seed ? *seed : drawn_seed()};
  return made;
}

InitialValue InitialValue::by_parts(std::vector<int64_t> sizes, MakePart make, at::ScalarType dtype) {
  if (!make) throw invalid_argument("InitialValue::by_parts: no function is given that makes the parts");
  InitialValue made(checked_spec(dtype, std::move(sizes)));
  made.make_ = std::move(make);
  return made;
}

InitialValue InitialValue::on_demand() const {
  if (!fill_ || spec_.sizes.empty()) {
    throw invalid_argument(
        "on_demand: an initial value of ", spec_.to_string(),
        spec_.sizes.empty() ? " has no rows" : " that is given as a tensor has no rule for its rows");
  }
  InitialValue made = *this;
  made.on_demand_ = true;
  return made;
}

InitialValue InitialValue::rows(int64_t first, int64_t count) const {
  InitialValue part = *this;
  part.spec_.sizes[0] = count;
  part.first_row_ = first_row_ + first;
  if (value_.defined()) part.value_ = value_.narrow(0, first, count);
  if (on_demand_) {
    part.fill_->first_row += first;  // a row draws the same numbers in every part
    return part;
  }
  // Parts of one variable draw different numbers.
  if (fill_) part.fill_->seed = step_seed(fill_->seed, static_cast<uint64_t>(part.first_row_), 0);
  return part;
}

at::Tensor InitialValue::tensor() const {
  if (value_.defined()) return value_;
  PlainTensors plain;
  if (make_) {
    std::vector<int64_t> offset(spec_.sizes.size(), 0);
    if (!offset.empty()) offset[0] = first_row_;
    at::Tensor made = make_(spec_.sizes, offset);
    if (spec_of(made) != spec_) {
      throw invalid_argument("the maker of an initial value returned ", spec_of(made).to_string(), ", expected ",
                             spec_.to_string());
    }
    return made;
  }
  at::Tensor made = memory_for(spec_);
  if (on_demand_) {
    RowTable::begin(made, *fill_);
    return RowTable::completed(made);
  }
  switch (fill_->kind) {
    case Fill::kConstant: made.fill_(fill_->a); break;
    case Fill::kUniform: made.uniform_(fill_->a, fill_->b, at::detail::createCPUGenerator(fill_->seed)); break;
    case Fill::kNormal: made.normal_(fill_->a, fill_->b, at::detail::createCPUGenerator(fill_->seed)); break;
  }
  return made;
}

}  // namespace muster
