// Choices of implementations, on disk: so that they can be looked at, shipped and pinned.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace muster {

// What was measured, where ("Neoverse-V1, 2 threads, libtorch 2.11.0"), and of what ("aten::convolution float[…] …").
// Neither has tabs or ends of lines.
struct TuningKey {
  std::string machine;
  std::string what;

  auto operator<=>(const TuningKey&) const = default;
};

struct TunedChoice {
  std::string winner;  // lower-case letters and _
  int line = 0;        // of the file that says so; 0: none does
};

using TuningTable = std::map<TuningKey, TunedChoice>;

// One line says "muster tuning 1", and each of those after it a winner, a machine and what was measured, with tabs in
// between. Throws Error{kDataLoss} that names `path` and the line for a text that is none, or was cut off, or says two
// things of one.
TuningTable parse_tuning(std::string_view text, const std::string& path);
std::string tuning_text(const TuningTable& table);

// Such a file, which several processes may have. It appears as a whole: who reads it never sees half of it.
// Immutable, so free to share between threads.
class TuningFile {
 public:
  explicit TuningFile(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }

  // Throws Error{kNotFound} if there is none, unless `may_be_missing`, and as parse_tuning does. An empty file is a
  // table of nothing.
  TuningTable read(bool may_be_missing) const;

  // Adds what the file lacks and returns all that it says then: of two processes that have measured the same, the first
  // one is right. They take turns, where the file system has locks. Throws Error for a file that cannot be read or
  // written, and leaves it as it was.
  TuningTable add(const TuningTable& table) const;

 private:
  const std::string path_;
};

}  // namespace muster
