#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace muster {

// A new file that is written once, from front to back, and is on the disk when finish() returns.
// Invariant: without a successful finish() the file is gone when this is destroyed. A kill leaves it half written, so a
// reader must learn from elsewhere that it is whole.
// For one thread at a time.
class OutputFile {
 public:
  // Throws Error{kAlreadyExists} rather than overwrite a file, so that two writers never mix theirs. What is there and
  // no plain file (/dev/full, a pipe) is written to.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Both throw Error{kResourceExhausted} for a full disk and Error{kDataLoss} for one that fails.
  void write(std::span<const std::byte> bytes);
  void finish();

  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  int descriptor_ = -1;
  bool remove_ = false;
};

// Names that were made, renamed or removed in a directory survive a power cut only after this.
void sync_directory(const std::string& path);

}  // namespace muster
