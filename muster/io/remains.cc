#include "muster/io/remains.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "muster/base/log.h"
#include "muster/io/disk.h"

namespace muster {

std::optional<int> lock_directory(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  struct stat locked;
  struct stat named;
  if (flock(descriptor, LOCK_EX | LOCK_NB) == 0 && fstat(descriptor, &locked) == 0 && stat(path.c_str(), &named) == 0 &&
      locked.st_ino == named.st_ino) {
    return descriptor;
  }
  close(descriptor);
  return std::nullopt;
}

void remove_tree(const std::string& path) {
  if (disk::remove_all(path) == 0) return;
  const int error = errno;
  MUSTER_LOG(warning) << path << " is not needed and stays: " << std::strerror(error);
}

BackgroundRemoval::~BackgroundRemoval() { wait(); }

void BackgroundRemoval::remove(const std::vector<std::string>& paths) {
  if (paths.empty()) return;
  absl::MutexLock lock(&mu_);
  for (const std::string& path : paths) {
    // Who looks again before it is removed finds it again.
    if (path != current_ && std::find(paths_.begin(), paths_.end(), path) == paths_.end()) paths_.push_back(path);
  }
  if (running_) return;
  running_ = true;
  thread_ = std::jthread([this] { run(); });  // the one before has ended, all but for its return
}

void BackgroundRemoval::wait() {
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(this, &BackgroundRemoval::idle));
}

void BackgroundRemoval::run() {
  while (true) {
    std::string path;
    {
      absl::MutexLock lock(&mu_);
      current_.clear();
      if (paths_.empty()) {
        running_ = false;
        return;
      }
      current_ = path = std::move(paths_.front());
      paths_.pop_front();
    }
    remove_tree(path);
  }
}

}  // namespace muster
