#include "muster/trace/signature.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <cstring>
#include <optional>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/trace/device_scope.h"

namespace muster {
namespace {

// The type that autocast makes of the operands on such devices; nothing where it is off.
std::optional<at::ScalarType> autocast_type(at::DeviceType device) {
  if (!at::autocast::is_autocast_enabled(device)) return std::nullopt;
  return at::autocast::get_autocast_dtype(device);
}

}  // namespace

Signature::Signature(size_t key) {
  words_.reserve(24);
  words_.push_back(static_cast<int64_t>(key));
  int64_t set = static_cast<int64_t>(c10::get_default_dtype_as_scalartype());
  for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
    set = set << 8 | (static_cast<int64_t>(autocast_type(device).value_or(at::ScalarType::Undefined)) & 0xff);
  }
  set = set << 1 | static_cast<int64_t>(at::globalContext().deterministicAlgorithms());
  words_.push_back(set);
  if (const std::string& device = DeviceScope::current(); !device.empty()) add(device);
}

void Signature::add(const SharedMemory& shared) {
  words_.push_back(kShared);
  shared.append_to(words_);
}

void Signature::add(const at::Tensor& tensor) {
  if (!tensor.defined()) throw invalid_argument("a tensor passed to a traced function is undefined");
  if (tensor.is_conj() || tensor.is_neg()) {
    throw invalid_argument("a tensor passed to a traced function is a view that conjugates or negates what it shows; ",
                           "pass ", tensor.is_conj() ? "resolve_conj()" : "resolve_neg()", " of it");
  }
  const bool contiguous = tensor.is_contiguous();
  words_.push_back(kTensor);
  words_.push_back(static_cast<int64_t>(tensor.scalar_type()) << 32 |
                   static_cast<int64_t>(tensor.device().type()) << 16 |
                   static_cast<int64_t>(tensor.device().index() + 1) << 8 | tensor.requires_grad() << 1 | contiguous);
  words_.push_back(tensor.dim());
  words_.insert(words_.end(), tensor.sizes().begin(), tensor.sizes().end());
  if (!contiguous) words_.insert(words_.end(), tensor.strides().begin(), tensor.strides().end());
}

void Signature::add(std::string_view text) {
  words_.push_back(kText);
  words_.push_back(static_cast<int64_t>(text.size()));
  const size_t begin = words_.size();
  words_.resize(begin + (text.size() + 7) / 8);
  if (!text.empty()) std::memcpy(words_.data() + begin, text.data(), text.size());
}

void Signature::add(const ElementSpecs& elements) {
  for (const ElementSpec& element : elements) {
    const std::vector<int64_t> numbers = numbers_of(element);
    words_.push_back(kElement);
    words_.insert(words_.end(), numbers.begin(), numbers.end());
  }
}

std::string describe_surroundings() {
  std::string text;
  auto add = [&](const auto&... parts) { str_append(text, text.empty() ? "" : ", ", parts...); };
  if (const std::string& device = DeviceScope::current(); !device.empty()) add("device scope \"", device, "\"");
  for (const at::DeviceType device : {at::kCPU, at::kCUDA}) {
    if (auto type = autocast_type(device)) {
      add("autocast of ", c10::DeviceTypeName(device, /*lower_case=*/true), " to ", c10::toString(*type));
    }
  }
  if (const at::ScalarType type = c10::get_default_dtype_as_scalartype(); type != at::kFloat) {
    add("default type ", c10::toString(type));
  }
  if (at::globalContext().deterministicAlgorithms()) add("deterministic algorithms");
  return text;
}

std::string describe(const at::Tensor& tensor) {
  std::string text = spec_of(tensor).to_string();
  if (!tensor.is_contiguous()) text += " with unusual strides";
  if (!tensor.device().is_cpu()) str_append(text, " on ", tensor.device().str());
  return text;
}

std::string describe_text(std::string_view text) { return str_cat("\"", text, "\""); }

}  // namespace muster
