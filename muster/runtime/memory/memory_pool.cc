#include "muster/runtime/memory/memory_pool.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <fstream>
#include <iterator>
#include <limits>
#include <new>
#include <optional>
#include <string>

#include "muster/base/status.h"
#include "muster/runtime/memory/small_memory.h"

namespace muster {
namespace {

constexpr size_t kAlignment = 64;            // libtorch's own
constexpr size_t kSmallestKept = 32 * 1024;  // malloc is good at what is smaller
#ifdef __SANITIZE_ADDRESS__
constexpr size_t kSmallestMapped = std::numeric_limits<size_t>::max();  // its malloc sees who writes beyond a block
#else
constexpr size_t kSmallestMapped = 128 * 1024;
#endif
// From here on pages are to be huge: a few percent of a convolution's time, and half of the time of an update of random
// rows, most of which goes into looking up where their pages are. What lies beside each other has them together.
constexpr size_t kSmallestHuge = 1024 * 1024;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, of Linux 6.1, which older headers do not name
constexpr size_t kLargestRounded = 64 * 1024 * 1024;

thread_local MemoryPool::Mode memory_here;

// What a block for so many bytes is made for. Tensors whose sizes differ a little from step to step, as rows do that
// are looked up, take each other's blocks: up to an eighth of one is not used. Its pages are not touched as long as
// nobody larger has had the block, but for those in the huge page that the tensor ends in.
size_t bytes_of_block(size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  return bytes;  // who writes beyond it is to be seen
#else
  if (bytes > kLargestRounded) return bytes;
  const size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
#endif
}

// Whether the owner of the system lets processes have pages of 2 MiB: "always [madvise] never".
bool has_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string choices;
  return std::getline(file, choices) && choices.find("[never]") == std::string::npos;
}

// Pages of 2 MiB as far as there are such, the one of which the block before has a part included: it was small, because
// there was nothing of this one yet. Where the system cannot, they stay as they are.
void make_huge(char* memory, size_t bytes) {
  constexpr size_t kHugePage = 2 * 1024 * 1024;
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  // Done at once, whatever the system's owner wants; and not for what may be mapped anew in every step.
  static const bool wanted = has_huge_pages();
  if (!wanted || bytes > kLargestRounded) return;
  char* const end = memory + bytes;
  char* const shared = end - reinterpret_cast<uintptr_t>(end) % kHugePage;
  if (shared != end) ::madvise(shared, kHugePage, kCollapse);
}

// Of a file with one number, or "max".
std::optional<int64_t> number_in(const char* path) {
  std::ifstream file(path);
  int64_t number = 0;
  if (file >> number && number > 0) return number;
  return std::nullopt;
}

}  // namespace

// Of a budget and of the tensors that count for it, whichever goes last.
struct MemoryPool::Account {
  static constexpr int64_t kOpen = 1;  // while the budget lives; bytes are multiples of kAlignment

  const int64_t limit;
  std::atomic<int64_t> used{kOpen};  // bytes, and kOpen

  // Throws Error{kResourceExhausted}, and then nothing was taken.
  void take(int64_t bytes) {
    const int64_t before = used.fetch_add(bytes, std::memory_order_relaxed) - kOpen;
    if (bytes <= limit && before <= limit - bytes) return;
    put(bytes);
    throw resource_exhausted("needs ", bytes, " bytes more; its run has ", before, " in use and may have ", limit);
  }

  void put(int64_t bytes) {
    if (used.fetch_sub(bytes, std::memory_order_acq_rel) == bytes) delete this;
  }
};

// Stands in front of the elements.
struct alignas(kAlignment) MemoryPool::Block {
  size_t bytes;        // that there is room for
  size_t counted = 0;  // of them, those of the tensor
  Account* account;    // that they count for; null: none
  bool pooled;

  void* data() { return this + 1; }
  static Block* of(void* data) { return static_cast<Block*>(data) - 1; }
  // Large blocks of the pool come from the system itself, and go back to it. Others would keep them: malloc in heaps
  // of which only the end is given back, and the allocator that libtorch has on arm64 if another thread has freed them.
  static Block* make(size_t bytes, bool pooled) {
    const bool mapped = pooled && bytes >= kSmallestMapped;
    void* memory = memory_here.pooled ? SmallMemory::take(sizeof(Block) + bytes) : nullptr;
    if (memory == nullptr) memory = mapped ? map(sizeof(Block) + bytes) : c10::alloc_cpu(sizeof(Block) + bytes);
    return new (memory) Block{.bytes = bytes, .account = nullptr, .pooled = pooled};
  }
  static void destroy(Block* block) {
    if (block->pooled && block->bytes >= kSmallestMapped) {
      ::munmap(block, sizeof(Block) + block->bytes);
    } else if (!memory_here.pooled || !SmallMemory::keep(block, sizeof(Block) + block->bytes)) {
      c10::free_cpu(block);
    }
  }

 private:
  static void* map(size_t bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw resource_exhausted("needs ", bytes, " bytes, which the system does not have");
    if (bytes >= kSmallestHuge) make_huge(static_cast<char*>(memory), bytes);
    return memory;
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

MemoryPool::Budget::Budget(int64_t bytes) : account_(new Account{bytes}) {}
MemoryPool::Budget::~Budget() { account_->put(Account::kOpen); }
int64_t MemoryPool::Budget::used() const { return account_->used.load(std::memory_order_relaxed) - Account::kOpen; }

MemoryPool::Mode MemoryPool::mode_here() { return memory_here; }

MemoryPool::Use::Use(Mode mode) : outer_(memory_here) {
  if (mode.pooled || mode.budget != nullptr) instance();
  memory_here = mode;
}
MemoryPool::Use::~Use() { memory_here = outer_; }

c10::DataPtr MemoryPool::allocate(size_t bytes) {
  if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::DeviceType::CPU)};
  constexpr size_t kMost = std::numeric_limits<int64_t>::max() - kAlignment;
  if (bytes > kMost) throw resource_exhausted("needs ", bytes, " bytes");
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  Account* const account = memory_here.budget == nullptr ? nullptr : memory_here.budget->account_;
  if (account != nullptr) account->take(static_cast<int64_t>(rounded));
  Block* block = nullptr;
  try {
    const bool pooled = memory_here.pooled && bytes >= kSmallestKept;
    block = pooled ? take(rounded) : Block::make(rounded, /*pooled=*/false);
  } catch (...) {
    if (account != nullptr) account->put(static_cast<int64_t>(rounded));
    throw;
  }
  block->account = account;
  block->counted = rounded;
  return {block->data(), block->data(), &release, c10::Device(c10::DeviceType::CPU)};
}

c10::DeleterFnPtr MemoryPool::raw_deleter() const { return &release; }

void MemoryPool::copy_data(void* to, const void* from, std::size_t bytes) const { default_copy_data(to, from, bytes); }

void MemoryPool::limit_to(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  most_ = static_cast<size_t>(bytes);
}

void MemoryPool::let_go() {
  std::vector<Block*> unwanted;
  {
    absl::MutexLock lock(&mu_);
    unwanted = take_unwanted(usage_.kept);
    usage_.peak = usage_.live;
  }
  for (Block* block : unwanted) Block::destroy(block);
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

MemoryPool::Block* MemoryPool::take(size_t tensor) {
  std::vector<Block*> unwanted;
  size_t live = 0, bytes = 0;
  {
    absl::MutexLock lock(&mu_);
    // However many runs there are, and whatever each of them may have.
    if (tensor > most_ || usage_.tensors > most_ - tensor) {
      throw resource_exhausted("needs ", tensor, " bytes more; all runs of this process have ", usage_.tensors,
                               " in use and may have ", most_);
    }
    // What blocks have beyond their tensors is not asked for by anybody: there is none of it where memory is short.
    bytes = bytes_of_block(tensor);
    if (usage_.live + bytes > most_ / 2) bytes = tensor;
    live = usage_.live += bytes;
    usage_.tensors += tensor;
    if (auto same = kept_.find(bytes); same != kept_.end() && !same->second.empty()) {
      Block* block = same->second.back();
      same->second.pop_back();
      usage_.kept -= bytes;
      usage_.peak = std::max(usage_.peak, live);
      return block;
    }
    ++usage_.fresh;
    const size_t most = std::max(usage_.peak, live) + kSpare;
    if (live + usage_.kept > most) unwanted = take_unwanted(live + usage_.kept - most);
  }
  for (Block* old : unwanted) Block::destroy(old);
  Block* block = nullptr;
  try {
    block = Block::make(bytes, /*pooled=*/true);
  } catch (...) {
    absl::MutexLock lock(&mu_);
    usage_.live -= bytes;
    usage_.tensors -= tensor;
    throw;
  }
  absl::MutexLock lock(&mu_);
  usage_.peak = std::max(usage_.peak, live);  // what could not be had was never in use
  return block;
}

void MemoryPool::give_back(Block* block) {
  absl::MutexLock lock(&mu_);
  usage_.live -= block->bytes;
  usage_.tensors -= block->counted;
  usage_.kept += block->bytes;
  kept_[block->bytes].push_back(block);
}

void MemoryPool::release(void* data) {
  if (data == nullptr) return;
  Block* block = Block::of(data);
  if (block->account != nullptr) block->account->put(static_cast<int64_t>(block->counted));
  if (block->pooled) {
    instance().give_back(block);
  } else {
    Block::destroy(block);
  }
}

int64_t usual_memory() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    bytes = std::min(bytes, number_in(path).value_or(bytes));
  }
  return bytes / 10 * 9;
}

int64_t resident_memory() {
  std::ifstream pages("/proc/self/statm");
  int64_t total = 0, resident = 0;
  pages >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace muster
