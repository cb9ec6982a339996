#include "muster/trace/signature.h"

#include <cstring>

#include "muster/base/status.h"
#include "muster/runtime/tensors.h"

namespace muster {

void Signature::add(const at::Tensor& tensor) {
  if (!tensor.defined()) throw invalid_argument("a tensor passed to a traced function is undefined");
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

std::string describe(const at::Tensor& tensor) {
  std::string text = spec_of(tensor).to_string();
  if (!tensor.is_contiguous()) text += " with unusual strides";
  if (!tensor.device().is_cpu()) str_append(text, " on ", tensor.device().str());
  return text;
}

std::string describe_text(std::string_view text) { return str_cat("\"", text, "\""); }

}  // namespace muster
