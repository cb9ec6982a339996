// The system calls that this folder makes, so that tests can let them fail. Not part of the library's interface.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace muster::disk {

// Bytes. What begins at a multiple of it, in a file and in memory, can be read from the disk straight to its place.
inline constexpr int64_t kBlock = 4096;

// As the system's. `path` names in errors and faults what the descriptor is of.
int open(const std::string& path, int flags, mode_t mode = 0);
ssize_t pread(int descriptor, void* to, size_t bytes, off_t offset, const std::string& path);
// Only what is in the system's cache: fails with EAGAIN where nothing of it is.
ssize_t pread_cached(int descriptor, const iovec& to, off_t offset, const std::string& path);
ssize_t write(int descriptor, const void* from, size_t bytes, const std::string& path);
// Whether what is written from now on goes past the cache of the system; false if it cannot.
bool set_direct(int descriptor, bool direct);
int fsync(int descriptor, const std::string& path);
int close(int descriptor, const std::string& path);
int stat(const std::string& path, struct stat* found);
int fstat(int descriptor, struct stat* found, const std::string& path);
int mkdir(const std::string& path, mode_t mode);
int rename(const std::string& from, const std::string& to);  // for faults: `to`
int link(const std::string& from, const std::string& to);    // for faults: `to`
int remove_all(const std::string& path);                     // a directory with all that is in it
int list(const std::string& path);                           // 0, before a directory is listed: for faults alone

// Whether a failure may pass, because the disk was away for a moment: it says nothing about what is on it.
bool may_pass(int error);

// How long a call that fails so is repeated: half a minute, with growing pauses.
class Patience {
 public:
  Patience() = default;
  static Patience none();

  // Pauses, and leaves errno as it is. False at once when the time is over.
  bool wait();

 private:
  std::chrono::milliseconds left_{30'000};
  std::chrono::milliseconds pause_{20};
};

// Makes a call that gives -1 and errno when it fails until it succeeds, fails for good, or patience ends.
template <class Call>
auto repeated(Patience patience, const Call& call) {
  auto result = call();
  while (result < 0 && (errno == EINTR || (may_pass(errno) && patience.wait()))) result = call();
  return result;
}

// For tests: while one lives, `decide` says with which errno a call of this process fails; 0: it is made. Pauses take
// no time. One at a time. `decide` is called by one thread at a time.
class [[nodiscard]] ScopedFaults {
 public:
  using Decide = std::function<int(std::string_view call, const std::string& path)>;
  explicit ScopedFaults(Decide decide);
  ~ScopedFaults();
  ScopedFaults(const ScopedFaults&) = delete;
  ScopedFaults& operator=(const ScopedFaults&) = delete;

  int failures() const ABSL_LOCKS_EXCLUDED(mu_);  // of calls
  int pauses() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  friend bool failed(std::string_view call, const std::string& path);
  friend class Patience;

  mutable absl::Mutex mu_;
  const Decide decide_ ABSL_GUARDED_BY(mu_);
  int failures_ ABSL_GUARDED_BY(mu_) = 0;
  int pauses_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace muster::disk
