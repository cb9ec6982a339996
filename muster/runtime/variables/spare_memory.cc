#include "muster/runtime/variables/spare_memory.h"

#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include "muster/base/status.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {

SpareMemory& SpareMemory::instance() {
  static auto* const all = new SpareMemory;  // tensors come back until the very end
  return *all;
}

at::Tensor SpareMemory::empty(const TensorSpec& spec) {
  constexpr size_t kPage = 4096;
  const auto bytes = static_cast<size_t>(spec.bytes());
  void* memory = take(bytes);
  if (memory != nullptr) {
    // From now on the system must not take them: it looks at what was written.
    for (size_t at = 0; at < bytes; at += kPage) static_cast<volatile char*>(memory)[at] = 0;
  } else {
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw resource_exhausted("no addresses left for ", bytes, " bytes");
    // All of it is about to be written: in large pages, where the system has them, that takes half the time.
    ::madvise(memory, bytes, MADV_HUGEPAGE);
  }
  return at::from_blob(
      memory, spec.sizes, [this, bytes](void* back) { give_back(back, bytes); },
      at::TensorOptions(scalar_type_of(spec.dtype)));
}

void* SpareMemory::take(size_t bytes) {
  absl::MutexLock lock(&mu_);
  const auto found = blocks_.find(bytes);
  if (found == blocks_.end()) return nullptr;
  void* const memory = found->second;
  blocks_.erase(found);
  kept_ -= static_cast<int64_t>(bytes);
  return memory;
}

void SpareMemory::give_back(void* memory, size_t bytes) {
  {
    absl::MutexLock lock(&mu_);
    if (kept_ + static_cast<int64_t>(bytes) <= kMost && ::madvise(memory, bytes, MADV_FREE) == 0) {
      kept_ += static_cast<int64_t>(bytes);
      blocks_.emplace(bytes, memory);
      return;
    }
  }
  ::munmap(memory, bytes);
}

int64_t SpareMemory::kept() const {
  absl::MutexLock lock(&mu_);
  return kept_;
}

void SpareMemory::let_go() {
  std::multimap<size_t, void*> blocks;
  {
    absl::MutexLock lock(&mu_);
    blocks.swap(blocks_);
    kept_ = 0;
  }
  for (const auto& [bytes, memory] : blocks) ::munmap(memory, bytes);
}

}  // namespace muster
