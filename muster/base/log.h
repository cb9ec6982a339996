#pragma once

#include <iosfwd>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

enum class LogLevel { kDebug = -1, kInfo, kWarning, kError };

struct LogLine {
  LogLevel level;
  std::string text;

  bool operator==(const LogLine&) const = default;
};

std::ostream& operator<<(std::ostream& out, const LogLine& line);

// Collects what is logged, by all threads and at every level, instead of printing it. For tests.
// Thread-safe. Captures may nest: a line goes to the innermost one, which must be destroyed first.
class [[nodiscard]] LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;

  std::vector<LogLine> lines() const;

  // Whether some line has these words in it.
  bool contains(std::string_view words) const;

 private:
  const size_t depth_;
};

namespace log_internal {

bool enabled(LogLevel level);

// The line as it is printed, without its end: "W 14:03:07.123456 text". `colour` wraps the level's letter in ANSI
// codes.
std::string format(const LogLine& line, std::string_view time, bool colour);

// What the environment variable MUSTER_LOG says: debug, info, warning, error or none. Anything else is info.
int threshold(const char* setting);

// Collects one line and writes it when it is destroyed.
class Message {
 public:
  explicit Message(LogLevel level) : level_(level) {}
  ~Message();
  Message(const Message&) = delete;

  std::ostream& stream() { return stream_; }

 private:
  const LogLevel level_;
  std::ostringstream stream_;
};

struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace log_internal
}  // namespace muster

// `MUSTER_LOG(warning) << task << " unreachable, retry in " << delay;` writes one line to stderr. Levels: debug,
// info, warning, error. MUSTER_LOG=warning in the environment hides what is below (info, the default, hides debug: what
// a job that is in order need not tell; none hides all), and a hidden line's parts are not evaluated.
#define MUSTER_LOG(level)                                    \
  !::muster::log_internal::enabled(MUSTER_LOG_LEVEL_##level) \
      ? (void)0                                              \
      : ::muster::log_internal::Voidify() & ::muster::log_internal::Message(MUSTER_LOG_LEVEL_##level).stream()
#define MUSTER_LOG_LEVEL_debug ::muster::LogLevel::kDebug
#define MUSTER_LOG_LEVEL_info ::muster::LogLevel::kInfo
#define MUSTER_LOG_LEVEL_warning ::muster::LogLevel::kWarning
#define MUSTER_LOG_LEVEL_error ::muster::LogLevel::kError
