// The scalars in the files that TensorBoard reads, whoever has written them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "muster/base/status.h"
#include "muster/data/files/record_reader.h"

namespace muster {

struct ScalarEvent {
  std::string tag;
  int64_t step;
  double wall_time;  // in seconds since 1970
  double value;
};

// Scalar after scalar of one file, in the order in which they were written. What else is in it is passed over, and a
// last event that is being written is not there yet. Not thread-safe.
class EventReader {
 public:
  // Throws what InputFile throws.
  explicit EventReader(const std::string& path);

  // Nothing after the last one. Throws Error{kDataLoss} that names the file and the record; the next call goes on
  // behind it, if there is a way on.
  std::optional<ScalarEvent> next();

 private:
  const std::unique_ptr<RecordReader> records_;
  std::deque<ScalarEvent> waiting_;  // of the event that was read last
};

// The values of a scalar in one run.
struct ScalarCurve {
  std::string tag;
  std::string run;  // its directory below that which was asked for: "train"; "." for that itself
  // By step. A file that begins behind older ones of the run goes on with them, and one that begins again at a step
  // replaces what they have from there on: a job that was started again, or another training in the same directory.
  std::vector<ScalarEvent> points{};
};

// By tag, then by run.
struct ScalarCurves {
  std::vector<ScalarCurve> curves{};
  int64_t files = 0;
  std::vector<Status> damaged{};     // what could not be read of them; the rest is there
  std::set<std::string> replaced{};  // runs in which a newer file has left nothing of a curve of older ones
};

// Of all event files in a directory and below. Throws Error{kNotFound} for no such directory.
ScalarCurves scalars_below(const std::string& directory);

}  // namespace muster
