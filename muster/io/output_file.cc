#include "muster/io/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "muster/io/file_error.h"

namespace muster {
namespace {

void sync(int descriptor, const std::string& path) {
  // EINVAL: not a kind of file that can be synced, or a file system that has no such call.
  if (fsync(descriptor) != 0 && errno != EINVAL) throw file_error(path, "fsync", errno);
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  remove_ = descriptor_ >= 0;
  if (descriptor_ < 0 && errno == EEXIST) {
    struct stat found;
    if (stat(path_.c_str(), &found) != 0 || S_ISREG(found.st_mode)) throw file_error(path_, "create", EEXIST);
    descriptor_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  }
  if (descriptor_ < 0) throw file_error(path_, "create", errno);
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (remove_) unlink(path_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw file_error(path_, "write", errno);
    if (written == 0) throw file_error(path_, "write", EIO);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void OutputFile::finish() {
  sync(descriptor_, path_);
  // Some network file systems say only here that the server had no room.
  if (close(std::exchange(descriptor_, -1)) != 0 && errno != EINTR) throw file_error(path_, "close", errno);
  remove_ = false;
}

void sync_directory(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw file_error(path, "open", errno);
  try {
    sync(descriptor, path);
  } catch (...) {
    close(descriptor);
    throw;
  }
  close(descriptor);
}

}  // namespace muster
