#include "muster/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "muster/io/file_error.h"

namespace muster {

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  // O_NONBLOCK: a pipe that a stranger put here must not hold us up.
  const int descriptor = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw file_error(path_, "open", errno);
  struct stat found;
  int error = fstat(descriptor, &found) != 0 ? errno : 0;
  const bool plain = error == 0 && S_ISREG(found.st_mode);
  if (plain && found.st_size > 0) {  // an empty file cannot be mapped
    const auto size = static_cast<size_t>(found.st_size);
    void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (memory == MAP_FAILED) {
      error = errno;
    } else {
      bytes_ = {static_cast<const std::byte*>(memory), size};
    }
  }
  close(descriptor);
  if (error != 0) throw file_error(path_, "map", error);
  if (!plain) throw invalid_argument("file \"", path_, "\": expected a plain file");
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace muster
