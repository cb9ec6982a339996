#include "muster/io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "muster/base/status.h"
#include "muster/io/disk.h"
#include "muster/io/file_error.h"

namespace muster {
namespace {

disk::Patience patience_of(bool patient) { return patient ? disk::Patience() : disk::Patience::none(); }

// Closes a descriptor that is not needed beyond its scope, and leaves errno as it is.
class OpenDescriptor {
 public:
  explicit OpenDescriptor(int descriptor, const std::string& path) : descriptor_(descriptor), path_(path) {}
  ~OpenDescriptor() {
    const int error = errno;
    if (descriptor_ >= 0) disk::close(descriptor_, path_);
    errno = error;
  }
  OpenDescriptor(const OpenDescriptor&) = delete;
  OpenDescriptor& operator=(const OpenDescriptor&) = delete;
  void keep() { descriptor_ = -1; }

 private:
  int descriptor_;
  const std::string& path_;
};

}  // namespace

int InputFile::open() const {
  // O_NONBLOCK: a pipe that a stranger put here must not hold us up.
  const int flags = O_RDONLY | O_NONBLOCK | (links_ == Links::kRefuse ? O_NOFOLLOW : 0);
  return disk::open(path_, flags);
}

InputFile::InputFile(std::string path, Links links, bool patient)
    : path_(std::move(path)),
      links_(links),
      patient_(patient),
      descriptor_(disk::repeated(patience_of(patient), [this] { return open(); })),
      size_(size_of(descriptor_)) {}

// Takes charge of the descriptor if it throws.
int64_t InputFile::size_of(int descriptor) const {
  if (descriptor < 0) {
    if (errno == ELOOP && links_ == Links::kRefuse) {
      throw invalid_argument("file \"", path_, "\": is a symbolic link, expected a plain file");
    }
    throw file_error(path_, "open", errno);
  }
  OpenDescriptor opened(descriptor, path_);
  struct stat found;
  if (disk::repeated(patience_of(patient_), [&] { return disk::fstat(descriptor, &found, path_); }) != 0) {
    throw file_error(path_, "stat", errno);
  }
  if (!S_ISREG(found.st_mode)) throw invalid_argument("file \"", path_, "\": expected a plain file");
  opened.keep();
  return found.st_size;
}

InputFile::~InputFile() { disk::close(descriptor_, path_); }

size_t InputFile::read_direct(int64_t offset, std::span<std::byte> out) const {
  using disk::kBlock;
  constexpr int64_t kBufferBytes = (4 << 20) + 2 * kBlock;  // 4 MiB from anywhere at once
  // Of what is open, and not of the path, where another file may be by now.
  const int direct = ::open(str_cat("/proc/self/fd/", descriptor_).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  const OpenDescriptor opened(direct, path_);
  if (direct < 0) return 0;
  size_t done = 0;
  // Whole blocks go where they belong, if that is at the edge of a block, too.
  if (offset % kBlock == 0 && reinterpret_cast<uintptr_t>(out.data()) % kBlock == 0) {
    const size_t whole = out.size() / kBlock * kBlock;
    while (done < whole) {
      const ssize_t got =
          disk::pread(direct, out.data() + done, whole - done, offset + static_cast<int64_t>(done), path_);
      if (got <= 0 || got % kBlock != 0) return done;
      done += static_cast<size_t>(got);
    }
    if (done == out.size()) return done;
  }
  const std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(kBlock, kBufferBytes), &std::free);
  if (!buffer) return done;
  while (done < out.size()) {
    const int64_t at = offset + static_cast<int64_t>(done), begin = at / kBlock * kBlock;
    const int64_t wanted = at - begin + static_cast<int64_t>(out.size() - done);
    const int64_t bytes = std::min(kBufferBytes, (wanted + kBlock - 1) / kBlock * kBlock);
    const ssize_t got = disk::pread(direct, buffer.get(), static_cast<size_t>(bytes), begin, path_);
    if (got <= at - begin) break;  // a failure is one of the usual way, too, which knows what to do
    const size_t count = std::min(static_cast<size_t>(got - (at - begin)), out.size() - done);
    std::memcpy(out.data() + done, static_cast<const std::byte*>(buffer.get()) + (at - begin), count);
    done += count;
  }
  return done;
}

size_t InputFile::read_cached(int64_t offset, std::span<std::byte> out) const {
  iovec to{out.data(), out.size()};
  const ssize_t got = disk::pread_cached(descriptor_, to, offset, path_);
  return got < 0 ? 0 : static_cast<size_t>(got);
}

size_t InputFile::read_some(int64_t offset, std::span<std::byte> out) const {
  constexpr size_t kCachedBytes = 256 << 10;  // a quarter of a usual second cache
  constexpr size_t kDirectBytes = 4 << 20;    // enough for a disk at its full speed
  constexpr size_t kWorthDirect = 1 << 20;
  if (const size_t got = read_cached(offset, out.first(std::min(kCachedBytes, out.size()))); got > 0) return got;
  const std::span<std::byte> piece = out.first(std::min(kDirectBytes, out.size()));
  if (piece.size() >= kWorthDirect) {
    if (const size_t got = read_direct(offset, piece); got > 0) return got;
  }
  read(offset, piece);
  return piece.size();
}

void InputFile::read_once(int64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const size_t got = read_some(offset, out);
    out = out.subspan(got);
    offset += static_cast<int64_t>(got);
  }
}

void InputFile::read(int64_t offset, std::span<std::byte> out) const {
  disk::Patience patience = patience_of(patient_);
  while (!out.empty()) {
    ssize_t got = disk::pread(descriptor_, out.data(), out.size(), offset, path_);
    while (got < 0 && (errno == EINTR || (disk::may_pass(errno) && patience.wait()))) {
      // The file of a network disk that was away may have to be opened again.
      const int again = open();
      const OpenDescriptor opened(again, path_);
      got = again < 0 ? -1 : disk::pread(again, out.data(), out.size(), offset, path_);
    }
    if (got < 0) throw file_error(path_, "read", errno);
    if (got == 0) throw data_loss("file \"", path_, "\": ends at ", offset, " of ", size_, " bytes");
    out = out.subspan(std::min(static_cast<size_t>(got), out.size()));
    offset += got;
  }
}

}  // namespace muster
