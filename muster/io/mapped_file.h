#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace muster {

// A file that is read as memory. The bytes are valid while this lives, also when the file is removed meanwhile.
// Immutable, so any thread may read.
// Limit: who shortens the file in place while it is mapped, or a disk that fails to read it, ends this process with
// SIGBUS. Nothing in Muster changes a file that it has finished.
class MappedFile {
 public:
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  const std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace muster
