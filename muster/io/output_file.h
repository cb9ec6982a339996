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
  // Throws Error{kAlreadyExists} rather than write to what is there, whatever it is, so that two writers never mix
  // theirs.
  explicit OutputFile(std::string path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Both throw Error{kResourceExhausted} for a full disk and Error{kUnavailable} for one that fails. What is in the
  // file is not known then, and syncing again would not tell: whoever tries again writes another one.
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
