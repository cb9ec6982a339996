// Variables of the environment, files and errors, for the tests of this folder. Not part of the library.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "muster/base/status.h"
#include "muster/base/test_errors.h"
#include "muster/base/test_wait.h"

namespace muster::testing_support {

// Sets a variable, or unsets it when there is no value, and puts it back as it was.
class [[nodiscard]] ScopedVariable {
 public:
  explicit ScopedVariable(const char* name, const std::optional<std::string>& value = {}) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~ScopedVariable() { set(before_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  void set(const std::optional<std::string>& value) const {
    if (value) {
      setenv(name_, value->c_str(), 1);
    } else {
      unsetenv(name_);
    }
  }

  const char* const name_;
  std::optional<std::string> before_;
};

// A directory of its own, gone with everything in it at the end.
class [[nodiscard]] ScopedDirectory {
 public:
  ScopedDirectory() {
    std::string path = (std::filesystem::temp_directory_path() / "muster_XXXXXX").string();
    path_ = mkdtemp(path.data());
  }
  ~ScopedDirectory() { std::filesystem::remove_all(path_); }
  ScopedDirectory(const ScopedDirectory&) = delete;
  ScopedDirectory& operator=(const ScopedDirectory&) = delete;

  const std::string& path() const { return path_; }

  // Writes a file in it and gives its path.
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
    return path_ + "/" + name;
  }

 private:
  std::string path_;
};

}  // namespace muster::testing_support
