#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace muster {

// A plain file that is read at any place. Not mapped into memory: there a disk that fails, or somebody who shortens the
// file meanwhile, would end this process with SIGBUS.
// Immutable, so any thread may read.
class InputFile {
 public:
  enum class Links { kFollow, kRefuse };  // where the path itself is a symbolic link

  // Throws Error{kNotFound} for no file, Error{kInvalidArgument} for what is no plain one. A disk that is away for a
  // moment is waited for, by those who are patient; one that stays away is Error{kUnavailable}.
  explicit InputFile(std::string path, Links links = Links::kFollow, bool patient = true);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  // when it was opened

  // Fills `out` from `offset` on. Throws Error{kDataLoss} when the file ends before that.
  void read(int64_t offset, std::span<std::byte> out) const;
  // For a file that nobody will read again soon: fills the beginning of `out`, and says how much of it. What the cache
  // of the system has comes from there, in pieces that stay in that of the processor; else a MiB and more comes past
  // it, where the disk allows that, which is three times as fast.
  size_t read_some(int64_t offset, std::span<std::byte> out) const;
  // All of it.
  void read_once(int64_t offset, std::span<std::byte> out) const;

 private:
  int open() const;
  int64_t size_of(int descriptor) const;
  // How many of the bytes they have read; the others are to be read as ever.
  size_t read_cached(int64_t offset, std::span<std::byte> out) const;
  size_t read_direct(int64_t offset, std::span<std::byte> out) const;

  const std::string path_;
  const Links links_;
  const bool patient_;
  const int descriptor_;
  const int64_t size_;
};

}  // namespace muster
