// Directories, files and errors, for the tests of this folder. Not part of the library.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/base/test_errors.h"

namespace muster::testing_support {

// A directory of its own, gone with everything in it at the end. In memory where that is possible: the tests sync a
// thousand files, and a disk takes milliseconds for each.
class [[nodiscard]] ScopedDirectory {
 public:
  ScopedDirectory() {
    const std::filesystem::path memory = "/dev/shm";
    const bool writable = access(memory.c_str(), W_OK) == 0;
    std::string path = ((writable ? memory : std::filesystem::temp_directory_path()) / "muster_io_XXXXXX").string();
    path_ = mkdtemp(path.data());
  }
  ~ScopedDirectory() { std::filesystem::remove_all(path_); }
  ScopedDirectory(const ScopedDirectory&) = delete;
  ScopedDirectory& operator=(const ScopedDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string path(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::vector<std::string> names_in(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path)) names.push_back(entry.path().filename().string());
  return names;
}

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace muster::testing_support
