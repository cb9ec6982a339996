#include "muster/near/near_tray.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace muster {
namespace {

constexpr size_t kWhole = SharedMemory::kHead + SharedMemory::kRoom;
constexpr uint64_t kTrayAlignment = 64;

static_assert(std::atomic<uint64_t>::is_always_lock_free);

char* map(const Descriptor& of, int protection) {
  void* begin = ::mmap(nullptr, kWhole, protection, MAP_SHARED, of.number(), 0);
  return begin == MAP_FAILED ? nullptr : static_cast<char*>(begin);
}

uint64_t rounded_up(uint64_t bytes) { return (bytes + kTrayAlignment - 1) / kTrayAlignment * kTrayAlignment; }

}  // namespace

std::optional<SharedMemory> SharedMemory::make() {
  Descriptor memory(::memfd_create("muster", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ::ftruncate(memory.number(), kWhole) != 0) return std::nullopt;
  char* begin = map(memory, PROT_READ | PROT_WRITE);
  if (begin == nullptr) return std::nullopt;
  SharedMemory made(std::move(memory), begin);
  // Who maps it from now on cannot write. Kernels before 5.1 do not know that; the other process is of the same user.
  ::fcntl(made.descriptor_.number(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  if (::fcntl(made.descriptor_.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return std::nullopt;
  }
  return made;
}

std::optional<SharedMemory> SharedMemory::open(Descriptor of) {
  struct stat about {};
  // What could shrink would end this process when it reads beyond the end.
  const int seals = of ? ::fcntl(of.number(), F_GET_SEALS) : -1;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return std::nullopt;
  if (::fstat(of.number(), &about) != 0 || about.st_size != static_cast<off_t>(kWhole)) return std::nullopt;
  char* begin = map(of, PROT_READ);
  if (begin == nullptr) return std::nullopt;
  return SharedMemory(std::move(of), begin);
}

SharedMemory::~SharedMemory() {
  if (begin_ != nullptr) ::munmap(begin_, kWhole);
}

std::optional<uint64_t> NearTrays::put(std::span<const char> bytes) {
  const uint64_t size = rounded_up(bytes.size());
  if (size > SharedMemory::kRoom) return std::nullopt;
  uint64_t place = 0;
  {
    absl::MutexLock lock(&mu_);
    place = put_;
    if (const uint64_t left = SharedMemory::kRoom - place % SharedMemory::kRoom; left < size) place += left;
    const uint64_t read = theirs_.read_so_far().load(std::memory_order_acquire);
    if (read > put_ || place + size - read > SharedMemory::kRoom) return std::nullopt;
    put_ = place + size;
  }
  // Nobody else has the place. Whoever is done with what the other one has put need not wait for the copy.
  std::copy(bytes.begin(), bytes.end(), ours_.room() + place % SharedMemory::kRoom);
  return place;
}

const char* NearTrays::find(uint64_t place, size_t bytes) {
  const uint64_t offset = place % SharedMemory::kRoom;
  if (place % kTrayAlignment != 0 || bytes > SharedMemory::kRoom - offset) return nullptr;
  absl::MutexLock lock(&mu_);
  const uint64_t read = ours_.read_so_far().load(std::memory_order_relaxed);
  if (place < read || place - read > 2 * SharedMemory::kRoom) return nullptr;
  if (!pieces_.try_emplace(place, Piece{place + rounded_up(bytes), true}).second) return nullptr;
  return theirs_.room() + offset;
}

void NearTrays::done_with(uint64_t place) {
  absl::MutexLock lock(&mu_);
  pieces_.at(place).in_use = false;
  // Messages come in the order in which they were put: those before the first that is in use have been read.
  while (!pieces_.empty() && !pieces_.begin()->second.in_use) {
    ours_.read_so_far().store(pieces_.begin()->second.end, std::memory_order_release);
    pieces_.erase(pieces_.begin());
  }
}

}  // namespace muster
