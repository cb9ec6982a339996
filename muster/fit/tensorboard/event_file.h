// Files that TensorBoard reads.
#pragma once

#include <fstream>
#include <string>

namespace muster {

namespace proto {
class Event;
}

// A new file of events in a directory, which is made if need be. For one thread at a time.
class EventFile {
 public:
  // Throws Error{kUnavailable} for a directory that cannot be written to, and so do the others.
  explicit EventFile(const std::string& directory);

  // Of this moment. Seen by who reads it meanwhile after flush(), or when the buffer is full.
  void add(proto::Event event);
  // All that was added.
  void flush();

  const std::string& path() const { return path_; }

  static double now();  // in seconds since 1970, as events say it

 private:
  void check() const;  // right after what may have failed: errno says why

  std::string path_;
  std::ofstream out_;
};

}  // namespace muster
