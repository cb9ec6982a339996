#include "muster/io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

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
