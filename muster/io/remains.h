// Directories that nobody needs any more: what killed writers left, and checkpoints that gave way to newer ones.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <deque>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace muster {

// A descriptor that holds the lock of a directory until it is closed, also by a kill. Nothing when another holds it,
// when the file system has no locks, and when the directory went away meanwhile.
std::optional<int> lock_directory(const std::string& path);

// Removes a directory with all that is in it. What stays, because the disk fails, is a line in the log, and is removed
// by a later CheckpointDirectory::keep().
void remove_tree(const std::string& path);

// Removes directories one after the other on a thread of its own, which is there while there is something to do: to
// remove a file takes as long as to write it on some disks. Who destroys this waits for it. Thread-safe.
class BackgroundRemoval {
 public:
  BackgroundRemoval() = default;
  ~BackgroundRemoval();
  BackgroundRemoval(const BackgroundRemoval&) = delete;
  BackgroundRemoval& operator=(const BackgroundRemoval&) = delete;

  void remove(const std::vector<std::string>& paths) ABSL_LOCKS_EXCLUDED(mu_);
  void wait() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void run() ABSL_LOCKS_EXCLUDED(mu_);
  bool idle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !running_; }

  absl::Mutex mu_;
  std::deque<std::string> paths_ ABSL_GUARDED_BY(mu_);
  std::string current_ ABSL_GUARDED_BY(mu_);  // that is being removed
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  std::jthread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
