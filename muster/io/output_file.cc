#include "muster/io/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "muster/io/disk.h"
#include "muster/io/file_error.h"

namespace muster {
namespace {

void sync(int descriptor, const std::string& path) {
  // EINVAL: not a kind of file that can be synced, or a file system that has no such call.
  if (disk::fsync(descriptor, path) != 0 && errno != EINVAL) throw file_error(path, "fsync", errno);
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  descriptor_ = disk::repeated({}, [&] { return disk::open(path_, O_WRONLY | O_CREAT | O_EXCL, 0666); });
  if (descriptor_ < 0) throw file_error(path_, "create", errno);
  remove_ = true;
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) disk::close(descriptor_, path_);
  if (remove_) unlink(path_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = disk::write(descriptor_, bytes.data(), bytes.size(), path_);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw file_error(path_, "write", errno);
    if (written == 0) throw file_error(path_, "write", EIO);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void OutputFile::finish() {
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
