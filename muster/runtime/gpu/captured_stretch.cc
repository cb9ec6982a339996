#include "muster/runtime/gpu/captured_stretch.h"

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/runtime/ops/op_failure.h"
#include "muster/runtime/worker/lost_device.h"

namespace muster {
namespace {

bool are_alike(const at::Tensor& a, const at::Tensor& b) {
  return b.defined() && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

bool is_part_of(const at::Tensor& tensor, const at::Tensor& whole) {
  return whole.defined() && tensor.has_storage() && tensor.storage().is_alias_of(whole.storage());
}

}  // namespace

CapturedStretch::Place CapturedStretch::Place::of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.const_data_ptr(), tensor.scalar_type(), c10::DimVector(tensor.sizes()),
          c10::DimVector(tensor.strides())};
}

bool CapturedStretch::Place::is_of(const at::Tensor& tensor) const {
  if (!tensor.defined()) return type == at::ScalarType::Undefined;
  return address == tensor.const_data_ptr() && type == tensor.scalar_type() && tensor.sizes() == sizes &&
         tensor.strides() == strides;
}

void CapturedStretch::run(std::vector<at::Tensor>& values, const std::vector<at::Generator>& generators,
                          const Perform& perform) {
  if (flags_) flags_->throw_if_set();
  if (graph_ && !fits(values)) {
    graph_.reset();
    results_.clear();
  }
  if (graph_) return replay(values);
  if (given_up_) return perform(nullptr);
  look_at(values);
  if (runs_ < kRunsBefore) {
    ++runs_;
    return perform(nullptr);
  }
  if (recordings_ == kMostRecordings) {
    give_up("what it works on is elsewhere, or of another size, every time");
    return perform(nullptr);
  }
  ++recordings_;
  perform_and_record(values, generators, perform);
}

void CapturedStretch::look_at(const std::vector<at::Tensor>& values) {
  for (size_t i = 0; i < seen_.size(); ++i) {
    const at::Tensor& value = values[stretch_.inputs[i]];
    seen_[i].times = seen_[i].place.is_of(value) ? seen_[i].times + 1 : 0;
    seen_[i].place = Place::of(value);
  }
}

bool CapturedStretch::fits(const std::vector<at::Tensor>& values) {
  bool all = true;
  for (size_t i = 0; i < fixed_.size(); ++i) all = all && fixed_[i].is_of(values[stretch_.fixed[i]]);
  for (size_t i = 0; i < seen_.size(); ++i) {
    const at::Tensor& value = values[stretch_.inputs[i]];
    if (seen_[i].copy ? are_alike(*seen_[i].copy, value) : seen_[i].place.is_of(value)) continue;
    seen_[i].moves = true;
    all = false;
  }
  return all;
}

void CapturedStretch::give_up(const std::string& why) {
  given_up_ = true;
  graph_.reset();
  results_.clear();
  for (Seen& seen : seen_) seen.copy.reset();
  MUSTER_LOG(info) << "program \"" << name_ << "\" is told to the GPU step by step, not as a graph: " << why;
}

// The steps are run first: libraries set themselves up anew for each thread, which cannot be recorded.
void CapturedStretch::perform_and_record(std::vector<at::Tensor>& values, const std::vector<at::Generator>& generators,
                                         const Perform& perform) {
  const auto tensors = [&](const std::vector<ValueId>& numbers) {
    std::vector<at::Tensor> them;
    for (ValueId number : numbers) them.push_back(values[number]);
    return them;
  };
  const auto put = [&](const std::vector<ValueId>& numbers, const std::vector<at::Tensor>& them) {
    for (size_t i = 0; i < numbers.size(); ++i) values[numbers[i]] = them[i];
  };
  const std::vector<at::Tensor> fixed = tensors(stretch_.fixed), given = tensors(stretch_.inputs);
  perform(nullptr);
  const std::vector<at::Tensor> results = tensors(stretch_.results);
  put(stretch_.fixed, fixed);
  put(stretch_.inputs, given);
  try {
    const RefusalsExpected recording;
    record(values, generators, perform);
  } catch (...) {
    give_up(first_line(status_of_op_failure().message()));
  }
  if (flags_) flags_->end();
  put(stretch_.fixed, fixed);
  put(stretch_.inputs, given);
  put(stretch_.results, results);
  for (ValueId value : stretch_.dropped) values[value].reset();
}

void CapturedStretch::record(std::vector<at::Tensor>& values, const std::vector<at::Generator>& generators,
                             const Perform& perform) {
  std::vector<at::Tensor> fixed;
  fixed_.clear();
  for (ValueId value : stretch_.fixed) {
    fixed.push_back(values[value]);
    fixed_.push_back(Place::of(values[value]));
  }
  std::vector<at::Tensor> given;
  for (size_t i = 0; i < seen_.size(); ++i) {
    Seen& seen = seen_[i];
    at::Tensor& value = values[stretch_.inputs[i]];
    if (value.defined() && !value.is_cuda()) throw failed_precondition("one of its operands is in the CPU's memory");
    seen.copy.reset();
    if (value.defined() && (seen.moves || seen.times < kRunsBefore)) {
      seen.copy = value.clone(at::MemoryFormat::Preserve);
      value = *seen.copy;
    }
    given.push_back(value);
  }
  if (!flags_) flags_.emplace(device_);
  graph_ = std::make_unique<GpuGraph>(device_, generators, [&] {
    flags_->begin(given);
    perform(&*flags_);
    flags_->publish();
  });
  replays_ = 0;
  for (ValueId value : stretch_.results) {
    const at::Tensor& tensor = values[value];
    Result& result = results_.emplace_back();
    if (!tensor.defined()) continue;
    if (!tensor.is_cuda()) throw failed_precondition("one of its results is in the CPU's memory");
    for (size_t i = 0; i < fixed.size() && result.fixed < 0; ++i) {
      if (is_part_of(tensor, fixed[i])) result.fixed = static_cast<int>(i);
    }
    if (result.fixed < 0) {
      result.tensor = tensor;
    } else {
      result.sizes = tensor.sizes().vec();
      result.strides = tensor.strides().vec();
      result.offset = tensor.storage_offset();
    }
  }
}

void CapturedStretch::replay(std::vector<at::Tensor>& values) {
  if (++replays_ == kWorthARecording) recordings_ = 0;
  for (size_t i = 0; i < seen_.size(); ++i) {
    if (seen_[i].copy) seen_[i].copy->copy_(values[stretch_.inputs[i]]);
  }
  graph_->replay();
  for (size_t i = 0; i < results_.size(); ++i) {
    const Result& result = results_[i];
    at::Tensor& value = values[stretch_.results[i]];
    if (result.fixed >= 0) {
      value = values[stretch_.fixed[result.fixed]].as_strided(result.sizes, result.strides, result.offset);
    } else {
      value = result.tensor.defined() ? result.tensor.clone(at::MemoryFormat::Preserve) : at::Tensor();
    }
  }
  for (ValueId value : stretch_.dropped) values[value].reset();
}

}  // namespace muster
