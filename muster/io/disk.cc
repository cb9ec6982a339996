#include "muster/io/disk.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "muster/base/check.h"
#include "muster/io/signal_blocked.h"

namespace muster::disk {
namespace {

std::atomic<ScopedFaults*> faults{nullptr};

}  // namespace

bool failed(std::string_view call, const std::string& path) {
  ScopedFaults* asked = faults.load(std::memory_order_acquire);
  if (asked == nullptr) return false;
  absl::MutexLock lock(&asked->mu_);
  const int error = asked->decide_(call, path);
  if (error == 0) return false;
  ++asked->failures_;
  errno = error;
  return true;
}

int open(const std::string& path, int flags, mode_t mode) {
  return failed("open", path) ? -1 : ::open(path.c_str(), flags | O_CLOEXEC, mode);
}

ssize_t pread(int descriptor, void* to, size_t bytes, off_t offset, const std::string& path) {
  return failed("pread", path) ? -1 : ::pread(descriptor, to, bytes, offset);
}

ssize_t pread_cached(int descriptor, const iovec& to, off_t offset, const std::string& path) {
  return failed("pread_cached", path) ? -1 : ::preadv2(descriptor, &to, 1, offset, RWF_NOWAIT);
}

ssize_t write(int descriptor, const void* from, size_t bytes, const std::string& path) {
  if (failed("write", path)) return -1;
  const SignalBlocked an_error_instead(SIGXFSZ);
  return ::write(descriptor, from, bytes);
}

bool set_direct(int descriptor, bool direct) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  return flags >= 0 && ::fcntl(descriptor, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

int fsync(int descriptor, const std::string& path) { return failed("fsync", path) ? -1 : ::fsync(descriptor); }

int close(int descriptor, const std::string& path) {
  const int result = ::close(descriptor);
  return failed("close", path) ? -1 : result;
}

int stat(const std::string& path, struct stat* found) {
  return failed("stat", path) ? -1 : ::stat(path.c_str(), found);
}

int fstat(int descriptor, struct stat* found, const std::string& path) {
  return failed("fstat", path) ? -1 : ::fstat(descriptor, found);
}

int mkdir(const std::string& path, mode_t mode) { return failed("mkdir", path) ? -1 : ::mkdir(path.c_str(), mode); }

int rename(const std::string& from, const std::string& to) {
  return failed("rename", to) ? -1 : std::rename(from.c_str(), to.c_str());
}

int link(const std::string& from, const std::string& to) {
  return failed("link", to) ? -1 : ::link(from.c_str(), to.c_str());
}

int remove_all(const std::string& path) {
  if (failed("remove", path)) return -1;
  std::error_code error;
  std::filesystem::remove_all(path, error);
  errno = error.value();
  return error ? -1 : 0;
}

int list(const std::string& path) { return failed("list", path) ? -1 : 0; }

bool may_pass(int error) {
  switch (error) {
    case EIO:
    case ESTALE:
    case EAGAIN:
    case EBUSY:
    case ETIMEDOUT:
    case EREMOTEIO:
    case ENOLINK:
    case ENOTCONN:
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ESHUTDOWN:
    case ENETDOWN:
    case ENETUNREACH:
    case ENETRESET:
    case EHOSTDOWN:
    case EHOSTUNREACH: return true;
    default: return false;
  }
}

Patience Patience::none() {
  Patience patience;
  patience.left_ = {};
  return patience;
}

bool Patience::wait() {
  if (left_ <= left_.zero()) return false;
  constexpr std::chrono::milliseconds kLongest(2000);
  const int error = errno;
  const auto pause = std::min(left_, std::exchange(pause_, std::min(2 * pause_, kLongest)));
  left_ -= pause;
  if (ScopedFaults* asked = faults.load(std::memory_order_acquire)) {
    absl::MutexLock lock(&asked->mu_);
    ++asked->pauses_;
  } else {
    std::this_thread::sleep_for(pause);
  }
  errno = error;
  return true;
}

ScopedFaults::ScopedFaults(Decide decide) : decide_(std::move(decide)) {
  MUSTER_CHECK(faults.exchange(this, std::memory_order_acq_rel) == nullptr);
}

ScopedFaults::~ScopedFaults() { faults.store(nullptr, std::memory_order_release); }

int ScopedFaults::failures() const {
  absl::MutexLock lock(&mu_);
  return failures_;
}

int ScopedFaults::pauses() const {
  absl::MutexLock lock(&mu_);
  return pauses_;
}

}  // namespace muster::disk
