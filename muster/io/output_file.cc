#include "muster/io/output_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "muster/io/disk.h"
#include "muster/io/file_error.h"

namespace muster {
namespace {

// What goes through the cache goes to the disk in pieces of so many bytes, each while the next one is copied into the
// cache. Of several times as many the disk gets half as much a second, and so it does if nobody asks it to begin.
constexpr size_t kPiece = 1 << 20;

void sync(int descriptor, const std::string& path) {
  // EINVAL: not a kind of file that can be synced, or a file system that has no such call.
  if (disk::fsync(descriptor, path) != 0 && errno != EINVAL) throw file_error(path, "fsync", errno);
}

}  // namespace

void OutputFile::Free::operator()(std::byte* buffer) const { ::munmap(buffer, kBufferBytes); }

OutputFile::OutputFile(std::string path, Cache cache) : path_(std::move(path)), cache_(cache) {
  descriptor_ = disk::repeated({}, [&] { return disk::open(path_, O_WRONLY | O_CREAT | O_EXCL, 0666); });
  if (descriptor_ < 0) throw file_error(path_, "create", errno);
  remove_ = true;
}

OutputFile::~OutputFile() {
  if (storing_.valid()) storing_.wait();
  if (descriptor_ >= 0) disk::close(descriptor_, path_);
  if (remove_) unlink(path_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    auto& buffer = buffers_[current_];
    if (!buffer) {
      // Whole pages, of which none stays behind: a heap would keep them, at another place for every thread that saves.
      void* const made =
          ::mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
      if (made == MAP_FAILED) throw std::bad_alloc();
      buffer.reset(static_cast<std::byte*>(made));
    }
    const size_t count = std::min(bytes.size(), kBufferBytes - filled_);
    std::memcpy(buffer.get() + filled_, bytes.data(), count);
    filled_ += count;
    bytes = bytes.subspan(count);
    if (filled_ < kBufferBytes) continue;
    wait_for_thread();
    const std::span<const std::byte> full(buffer.get(), kBufferBytes);
    try {
      storing_ = std::async(std::launch::async, [this, full] { store(full); });
    } catch (const std::system_error&) {  // no more threads
      store(full);
    }
    current_ = 1 - current_;
    filled_ = 0;
  }
}

void OutputFile::wait_for_thread() {
  if (storing_.valid()) storing_.get();
}

void OutputFile::store(std::span<const std::byte> bytes) {
  // What goes past the cache begins and ends at multiples of a block, in memory and in the file. What is less than a
  // buffer is the end of the file, which need not be one.
  bool direct = cache_ == Cache::kPast && bytes.size() == kBufferBytes && disk::set_direct(descriptor_, true);
  const size_t most = cache_ == Cache::kThrough ? kPiece : kBufferBytes;
  while (!bytes.empty()) {
    const ssize_t written = disk::write(descriptor_, bytes.data(), std::min(bytes.size(), most), path_);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EINVAL && direct) {  // not here, or no longer at a multiple of blocks
      disk::set_direct(descriptor_, direct = false);
      continue;
    }
    if (written < 0) throw file_error(path_, "write", errno);
    if (written == 0) throw file_error(path_, "write", EIO);
    bytes = bytes.subspan(static_cast<size_t>(written));
    if (cache_ == Cache::kThrough) ::sync_file_range(descriptor_, stored_, written, SYNC_FILE_RANGE_WRITE);
    stored_ += written;
  }
  if (direct) disk::set_direct(descriptor_, false);
}

void OutputFile::finish() {
  wait_for_thread();
  store(std::span<const std::byte>(buffers_[current_].get(), std::exchange(filled_, 0)));
  sync(descriptor_, path_);
  // Some network file systems say only here that the server had no room.
  if (disk::close(std::exchange(descriptor_, -1), path_) != 0 && errno != EINTR) {
    throw file_error(path_, "close", errno);
  }
  remove_ = false;
}

void sync_directory(const std::string& path) {
  const int descriptor = disk::repeated({}, [&] { return disk::open(path, O_RDONLY | O_DIRECTORY); });
  if (descriptor < 0) throw file_error(path, "open", errno);
  try {
    sync(descriptor, path);
  } catch (...) {
    disk::close(descriptor, path);
    throw;
  }
  disk::close(descriptor, path);
}

}  // namespace muster
