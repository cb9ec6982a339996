// Memory that ends at a page nobody may touch, so that an op which looks one element too far dies at once.
#pragma once

#include <c10/core/Allocator.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "muster/base/status.h"

namespace muster::testing_support {

class FenceAllocator : public c10::Allocator {
 public:
  static constexpr size_t kMost = size_t{64} << 20;  // bytes of one tensor

  bool fence_in_front = false;  // else behind

  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    if (bytes > kMost) throw resource_exhausted("asks for ", bytes, " bytes");
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t usable = (bytes + page - 1) / page * page;
    const size_t whole = usable + 2 * page;
    void* memory = mmap(nullptr, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw resource_exhausted("no addresses left for ", whole, " bytes");
    char* start = static_cast<char*>(memory);
    mprotect(start + page, usable, PROT_READ | PROT_WRITE);
    char* data = start + page;
    if (!fence_in_front) data += usable - (bytes + 7) / 8 * 8;
    const std::lock_guard lock(mu());
    blocks()[data] = {start, whole};
    return {data, data, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  using Blocks = std::unordered_map<void*, std::pair<void*, size_t>>;  // by data: where it is mapped, and how long
  // Never destroyed; tensors with static lifetime come back late. Workers have threads, which free what others have.
  static std::mutex& mu() {
    static std::mutex& mu = *new std::mutex;
    return mu;
  }
  static Blocks& blocks() {
    static Blocks& blocks = *new Blocks;
    return blocks;
  }
  static void release(void* data) {
    const std::lock_guard lock(mu());
    auto found = blocks().find(data);
    if (found == blocks().end()) return;
    munmap(found->second.first, found->second.second);
    blocks().erase(found);
  }
};

}  // namespace muster::testing_support
