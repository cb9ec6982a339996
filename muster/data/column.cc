#include "muster/data/column.h"

#include <absl/strings/str_join.h>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {

std::string RecordOrigin::to_string() const {
  if (file == nullptr) return str_cat("record ", number);
  return str_cat("file \"", file->path, "\": ", file->unit, " ", number);
}

void Strings::reserve(size_t count, size_t bytes) {
  ends_.reserve(count);
  bytes_.reserve(bytes);
}

void Strings::append(std::string_view next) {
  bytes_.append(next);
  ends_.push_back(bytes_.size());
  sizes_.assign(1, static_cast<int64_t>(ends_.size()));
}

void Strings::append_all(const Strings& others) {
  const bool known = others.origin_.file != nullptr || !others.origins_.empty();
  if (known) origins_.resize(ends_.size());
  const size_t before = bytes_.size();
  bytes_.append(others.bytes_);
  if (others.ends_.empty() && others.count() == 1) ends_.push_back(bytes_.size());
  for (const size_t end : others.ends_) ends_.push_back(before + end);
  if (known || !origins_.empty()) {
    for (size_t i = 0; i < others.count(); ++i) origins_.push_back(others.origin(i));
  }
  sizes_.assign(1, static_cast<int64_t>(ends_.size()));
}

void Strings::shape(std::vector<int64_t> sizes) {
  uint64_t count = 1;
  bool fits = true;
  for (const int64_t size : sizes) {
    fits = fits && size >= 0 && !__builtin_mul_overflow(count, static_cast<uint64_t>(size), &count);
  }
  if (!fits || count != ends_.size()) {
    throw invalid_argument(ends_.size(), " strings have no shape [", absl::StrJoin(sizes, ", "), "]");
  }
  if (sizes.empty()) ends_.clear();
  sizes_ = std::move(sizes);
}

std::string Column::take_text() && {
  return strings_.use_count() == 1 ? std::move(*strings_).take_bytes() : std::string((*strings_)[0]);
}

std::string Column::to_string() const {
  if (!holds_strings()) return spec_of(tensor_).to_string();
  return str_cat("string[", absl::StrJoin(strings_->sizes(), ", "), "]");
}

}  // namespace muster
