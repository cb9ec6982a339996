#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <span>
#include <string>

namespace muster {

// A new file that is written once, from front to back, and is on the disk when finish() returns.
// Invariant: without a successful finish() the file is gone when this is destroyed. A kill leaves it half written, so a
// reader must learn from elsewhere that it is whole.
// Bytes are copied into one of two buffers while the other one is written by a thread of its own.
// For one thread at a time.
class OutputFile {
 public:
  static constexpr size_t kBufferBytes = 8 << 20;  // of each; small files take as little memory as they have bytes

  // kPast the cache of the system, where the disk allows that, takes a tenth of the processor's time. What went
  // kThrough is still in memory for whoever reads it soon, several times as fast as from the disk.
  enum class Cache { kPast, kThrough };

  // Throws Error{kAlreadyExists} rather than write to what is there, whatever it is, so that two writers never mix
  // theirs.
  explicit OutputFile(std::string path, Cache cache = Cache::kPast);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Both throw Error{kResourceExhausted} for a full disk and Error{kUnavailable} for one that fails, which may be about
  // bytes of an earlier call. What is in the file is not known then, and syncing again would not tell: whoever tries
  // again writes another one.
  void write(std::span<const std::byte> bytes);
  void finish();

  const std::string& path() const { return path_; }

 private:
  struct Free {
    void operator()(std::byte* buffer) const;
  };

  void store(std::span<const std::byte> bytes);
  void wait_for_thread();

  const std::string path_;
  const Cache cache_;
  int descriptor_ = -1;
  bool remove_ = false;
  std::unique_ptr<std::byte[], Free> buffers_[2];
  size_t current_ = 0, filled_ = 0;
  off_t stored_ = 0;  // bytes, by whoever stores
  std::future<void> storing_;
};

// Names that were made, renamed or removed in a directory survive a power cut only after this.
void sync_directory(const std::string& path);

}  // namespace muster
