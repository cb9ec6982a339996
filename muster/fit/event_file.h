// Files that TensorBoard reads.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <string>

namespace muster {

// A new file of events in a directory, which is made if need be. What was written is seen by who reads it meanwhile.
// For one thread at a time.
class EventFile {
 public:
  // Throws Error{kUnavailable} for a directory that cannot be written to.
  explicit EventFile(const std::string& directory);

  void write(int64_t step, const std::map<std::string, double>& scalars);  // throws as the constructor does
  const std::string& path() const { return path_; }

 private:
  void put(const std::string& event);

  std::string path_;
  std::ofstream out_;
};

}  // namespace muster
