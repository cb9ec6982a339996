#include "muster/runtime/gpu/device_flags.h"

#include <ATen/ops/clamp.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "muster/base/status.h"
#include "muster/runtime/gpu/gpu_graph.h"

namespace muster {
namespace {

c10::Stream current_stream(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

c10::Event event_of(const c10::Stream& stream) {
  c10::Event event(stream.device_type());
  event.record(stream);
  return event;
}

}  // namespace

// What is launched while it lives is launched beside the steps, after `after`.
class DeviceFlags::Beside {
 public:
  Beside(at::Device device, const c10::Event& after)
      : main_(current_stream(device)), side_(GpuGraph::side_stream(device)) {
    after.block(side_);
    guard_.emplace(side_);
  }
  // The steps that follow need what was launched so far.
  void is_needed() const { event_of(side_).block(main_); }

 private:
  const c10::Stream main_, side_;
  std::optional<c10::StreamGuard> guard_;
};

DeviceFlags::DeviceFlags(at::Device device)
    : device_(device),
      found_(at::zeros({kMost}, at::TensorOptions(at::kBool).device(device))),
      arrived_(at::zeros({kMost}, at::TensorOptions(at::kBool).pinned_memory(device.is_cuda()))) {}

DeviceFlags::~DeviceFlags() {
  if (!device_.is_cuda()) return;
  GpuGraph::between_recordings([&] {
    try {
      c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
    } catch (const std::exception&) {
      // It is lost, and tells nothing any more.
    }
    begun_.reset();
    arrived_.reset();
  });
}

void DeviceFlags::begin(std::vector<at::Tensor> given) {
  given_ = std::move(given);
  if (device_.is_cuda()) begun_.emplace(event_of(current_stream(device_)));
}

void DeviceFlags::flag_if(const at::Tensor& wrong, const std::string& what) {
  auto known = std::find(what_.begin(), what_.end(), what);
  if (known == what_.end() && what_.size() < kMost) known = what_.insert(what_.end(), what);
  const int64_t number = std::min<int64_t>(known - what_.begin(), kMost - 1);
  found_.select(0, number).logical_or_(wrong.any());
}

template <class Make>
at::Tensor DeviceFlags::check(const at::Tensor& numbers, const std::string& what, const Make& make) {
  std::optional<Beside> beside;
  if (begun_) {
    const bool given =
        std::any_of(given_.begin(), given_.end(), [&](const at::Tensor& each) { return each.is_same(numbers); });
    if (given) {
      beside.emplace(device_, *begun_);
    } else {
      beside.emplace(device_, event_of(current_stream(device_)));
    }
  }
  const auto [safe, wrong] = make();
  if (beside) beside->is_needed();
  flag_if(wrong(), what);
  return safe;
}

at::Tensor DeviceFlags::safe(const at::Tensor& indices, const Range& range, const std::string& what) {
  if (indices.numel() == 0) return indices;
  for (const Seen& seen : seen_) {
    if (!seen.changed && seen.indices.is_same(indices) && seen.range == range) return seen.safe;
  }
  const at::Tensor made = check(indices, what, [&] {
    at::Tensor safe = range.end <= range.least ? indices : indices.clamp(range.least, range.end - 1);
    if (range.or_else) safe = at::where(indices.eq(*range.or_else), indices, safe);
    return std::pair(safe, [safe, &indices] { return safe.ne(indices); });
  });
  seen_.push_back({indices, range, made});
  return made;
}

at::Tensor DeviceFlags::safe_fractions(const at::Tensor& numbers, const std::string& what) {
  if (numbers.numel() == 0) return numbers;
  const at::Tensor made = check(numbers, what, [&] {
    const at::Tensor right = at::logical_and(numbers.ge(0), numbers.le(1));  // false for what is not a number
    return std::pair(at::where(right, numbers, at::zeros({}, numbers.options())),
                     [right] { return right.logical_not(); });
  });
  seen_.push_back({numbers, {}, made, /*changed=*/true});
  return made;
}

void DeviceFlags::forget(const at::Tensor& written) {
  if (!written.defined() || !written.has_storage()) return;
  for (Seen& seen : seen_) seen.changed = seen.changed || seen.indices.storage().is_alias_of(written.storage());
}

void DeviceFlags::publish() {
  if (what_.empty()) return;
  std::optional<Beside> beside;
  if (begun_) beside.emplace(device_, *begun_);
  arrived_.copy_(found_, /*non_blocking=*/true);
  if (beside) beside->is_needed();
}

void DeviceFlags::end() {
  seen_.clear();
  given_.clear();
  begun_.reset();
}

void DeviceFlags::throw_if_set() {
  const auto* arrived = static_cast<const volatile bool*>(arrived_.const_data_ptr());
  for (size_t i = 0; i < what_.size(); ++i) {
    if (!arrived[i]) continue;
    found_.zero_();
    arrived_.zero_();
    throw invalid_argument("of an earlier step: ", what_[i],
                           "; it was found on the GPU while the steps after it had begun, and what they changed stays");
  }
}

}  // namespace muster
