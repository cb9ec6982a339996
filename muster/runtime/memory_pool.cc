#include "muster/runtime/memory_pool.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>

namespace muster {
namespace {

constexpr size_t kAlignment = 64;            // libtorch's own
constexpr size_t kSmallestKept = 32 * 1024;  // malloc is good at what is smaller

constexpr size_t kPage = 4096;
constexpr size_t kSmallestHuge = 4 * 1024 * 1024;

thread_local bool in_use = false;

// Fewer entries for the processor to look up: a few percent of a convolution's time. A hint; nothing depends on it.
void ask_for_huge_pages(void* memory, size_t bytes) {
  const auto begin = (reinterpret_cast<uintptr_t>(memory) + kPage - 1) / kPage * kPage;
  const auto end = (reinterpret_cast<uintptr_t>(memory) + bytes) / kPage * kPage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace

// Stands in front of the elements.
struct alignas(kAlignment) MemoryPool::Block {
  size_t bytes;  // of the elements
  bool pooled;

  void* data() { return this + 1; }
  static Block* of(void* data) { return static_cast<Block*>(data) - 1; }
  static Block* make(size_t bytes, bool pooled) {
    void* memory = c10::alloc_cpu(sizeof(Block) + bytes);
    if (pooled && bytes >= kSmallestHuge) ask_for_huge_pages(memory, sizeof(Block) + bytes);
    return new (memory) Block{bytes, pooled};
  }
};

MemoryPool& MemoryPool::instance() {
  // Never destroyed: tensors with static lifetime come back after everything else has gone.
  static MemoryPool& pool = [&]() -> MemoryPool& {
    auto* made = new MemoryPool;
    c10::SetCPUAllocator(made, /*priority=*/100);
    return *made;
  }();
  return pool;
}

bool MemoryPool::used_here() { return in_use; }

MemoryPool::Use::Use(bool on) : outer_(in_use) {
  if (on) instance();
  in_use = on;
}
MemoryPool::Use::~Use() { in_use = outer_; }

c10::DataPtr MemoryPool::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  Block* block = in_use && bytes >= kSmallestKept ? take(rounded) : Block::make(rounded, /*pooled=*/false);
  return {block->data(), block->data(), &release, c10::Device(c10::DeviceType::CPU)};
}

c10::DeleterFnPtr MemoryPool::raw_deleter() const { return &release; }

void MemoryPool::copy_data(void* to, const void* from, std::size_t bytes) const { default_copy_data(to, from, bytes); }

void MemoryPool::let_go() {
  std::vector<Block*> unwanted;
  {
    absl::MutexLock lock(&mu_);
    unwanted = take_unwanted(usage_.kept);
    usage_.peak = usage_.live;
  }
  for (Block* block : unwanted) c10::free_cpu(block);
}

MemoryPool::Usage MemoryPool::usage() const {
  absl::MutexLock lock(&mu_);
  Usage usage = usage_;
  usage.sizes = kept_.size();
  return usage;
}

std::vector<MemoryPool::Block*> MemoryPool::take_unwanted(size_t bytes) {
  std::vector<Block*> unwanted;
  while (bytes > 0 && !kept_.empty()) {
    // One block that is large enough rather than many small ones, and none that is larger than it must be.
    auto fits = kept_.lower_bound(bytes);
    if (fits == kept_.end()) fits = std::prev(kept_.end());
    const size_t size = fits->first;
    if (!fits->second.empty()) {
      unwanted.push_back(fits->second.back());
      fits->second.pop_back();
      usage_.kept -= size;
      bytes -= std::min(bytes, size);
    }
    if (fits->second.empty()) kept_.erase(fits);
  }
  return unwanted;
}

MemoryPool::Block* MemoryPool::take(size_t bytes) {
  std::vector<Block*> unwanted;
  size_t live = 0;
  {
    absl::MutexLock lock(&mu_);
    live = usage_.live += bytes;
    if (auto same = kept_.find(bytes); same != kept_.end() && !same->second.empty()) {
      Block* block = same->second.back();
      same->second.pop_back();
      usage_.kept -= bytes;
      usage_.peak = std::max(usage_.peak, live);
      return block;
    }
    ++usage_.fresh;
    const size_t most = std::max(usage_.peak, live);
    if (live + usage_.kept > most) unwanted = take_unwanted(live + usage_.kept - most);
  }
  for (Block* old : unwanted) c10::free_cpu(old);
  Block* block = nullptr;
  try {
    block = Block::make(bytes, /*pooled=*/true);
  } catch (...) {
    absl::MutexLock lock(&mu_);
    usage_.live -= bytes;
    throw;
  }
  absl::MutexLock lock(&mu_);
  usage_.peak = std::max(usage_.peak, live);  // what could not be had was never in use
  return block;
}

void MemoryPool::give_back(Block* block) {
  absl::MutexLock lock(&mu_);
  usage_.live -= block->bytes;
  usage_.kept += block->bytes;
  kept_[block->bytes].push_back(block);
}

void MemoryPool::release(void* data) {
  if (data == nullptr) return;
  Block* block = Block::of(data);
  if (block->pooled) {
    instance().give_back(block);
  } else {
    c10::free_cpu(block);
  }
}

}  // namespace muster
