#include "muster/runtime/tuning/tuning_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <span>

#include "muster/base/status.h"
#include "muster/io/file_error.h"
#include "muster/io/input_file.h"
#include "muster/io/output_file.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

constexpr std::string_view kFirstLine = "muster tuning 1";
constexpr int64_t kMaxTuningBytes = 16 << 20;

bool is_winner(std::string_view name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
}

// The lock of the file itself, which a process that replaces it holds until the new one is in its place.
class TuningLock {
 public:
  explicit TuningLock(const std::string& path) {
    for (;;) {
      descriptor_ = open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0644);
      if (descriptor_ < 0) throw file_error(path, "open", errno);
      while (flock(descriptor_, LOCK_EX) != 0) {
        if (errno != EINTR) return;  // without locks the last one wins
      }
      struct stat locked {};
      struct stat named {};
      if (fstat(descriptor_, &locked) != 0 || (stat(path.c_str(), &named) == 0 && locked.st_ino == named.st_ino))
        return;
      close(descriptor_);  // another one has replaced it meanwhile
    }
  }
  ~TuningLock() { close(descriptor_); }
  TuningLock(const TuningLock&) = delete;
  TuningLock& operator=(const TuningLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace

TuningTable parse_tuning(std::string_view text, const std::string& path) {
  TuningTable table;
  int line = 0;
  auto damaged = [&](const auto&... words) {
    return data_loss("tuning file \"", path, "\", line ", line, ": ", words...);
  };
  while (!text.empty()) {
    ++line;
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) throw damaged("is cut off; expected an end of line");
    const std::string_view words = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (line == 1) {
      if (words != kFirstLine) throw damaged("expected \"", kFirstLine, "\"; is it another file?");
      continue;
    }
    const size_t first = words.find('\t');
    const size_t second = first == std::string_view::npos ? first : words.find('\t', first + 1);
    if (second == std::string_view::npos || words.find('\t', second + 1) != std::string_view::npos) {
      throw damaged("expected a winner, a machine and what was measured, with tabs in between");
    }
    TuningKey key{std::string(words.substr(first + 1, second - first - 1)), std::string(words.substr(second + 1))};
    const std::string_view winner = words.substr(0, first);
    if (!is_winner(winner)) throw damaged("expected the name of a winner, of lower-case letters and _");
    if (key.machine.empty() || key.what.empty()) throw damaged("has no machine, or nothing that was measured");
    const auto [known, is_new] = table.try_emplace(std::move(key), TunedChoice{std::string(winner), line});
    if (!is_new && known->second.winner != winner) {
      throw damaged("says \"", winner, "\" of what line ", known->second.line, " says \"", known->second.winner,
                    "\" of");
    }
  }
  return table;
}

std::string tuning_text(const TuningTable& table) {
  std::string text = str_cat(kFirstLine, "\n");
  for (const auto& [key, choice] : table) str_append(text, choice.winner, "\t", key.machine, "\t", key.what, "\n");
  return text;
}

TuningTable TuningFile::read(bool may_be_missing) const {
  std::error_code unknown;
  if (may_be_missing && !std::filesystem::exists(path_, unknown) && !unknown) return {};
  const InputFile file(path_);
  if (file.size() > kMaxTuningBytes) {
    throw data_loss("tuning file \"", path_, "\": has ", file.size(), " bytes, expected ", kMaxTuningBytes, " at most");
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return parse_tuning(text, path_);
}

TuningTable TuningFile::add(const TuningTable& table) const {
  const TuningLock lock(path_);
  TuningTable all = read(true);
  const size_t known = all.size();
  for (const auto& [key, choice] : table) all.try_emplace(key, choice);
  if (all.size() == known) return all;
  const std::string text = tuning_text(all);
  const std::string temporary = str_cat(path_, ".", absl::Hex(random_id()), ".tmp");
  {
    OutputFile file(temporary);
    file.write(std::as_bytes(std::span(text)));
    file.finish();
  }
  std::error_code failed;
  std::filesystem::rename(temporary, path_, failed);
  if (failed) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw unavailable("tuning file \"", path_, "\": cannot be put in its place: ", failed.message());
  }
  return parse_tuning(text, path_);
}

}  // namespace muster
