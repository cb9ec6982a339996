#include "muster/base/log.h"

#include <absl/base/thread_annotations.h>
#include <absl/strings/str_format.h>
#include <absl/synchronization/mutex.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <ostream>
#include <utility>

#include "muster/base/check.h"
#include "muster/base/strings.h"
#include "muster/base/terminal_line.h"

namespace muster {
namespace {

// The captures of this process, innermost last. It is never destroyed, since threads may log while the process ends.
struct Captures {
  absl::Mutex mu;
  std::vector<std::vector<LogLine>> stack ABSL_GUARDED_BY(mu);
  std::atomic<bool> any = false;  // Whether `stack` has one; read without the lock.
};

Captures& captures() {
  static auto& instance = *new Captures;  // NOLINT(cppcoreguidelines-owning-memory)
  return instance;
}

std::string time_of_day() {
  const auto now = std::chrono::system_clock::now();
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count() % 1'000'000;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm local = {};
  localtime_r(&seconds, &local);
  return absl::StrFormat("%02d:%02d:%02d.%06d", local.tm_hour, local.tm_min, local.tm_sec, micros);
}

bool captured(LogLevel level, std::string& text) {
  Captures& all = captures();
  if (!all.any.load(std::memory_order_relaxed)) return false;
  absl::MutexLock lock(&all.mu);
  if (all.stack.empty()) return false;
  all.stack.back().push_back({level, std::move(text)});
  return true;
}

int process_threshold() {
  static const int value = log_internal::threshold(std::getenv("MUSTER_LOG"));
  return value;
}

size_t number_of(LogLevel level) { return static_cast<size_t>(static_cast<int>(level) + 1); }
char letter_of(LogLevel level) { return "DIWE"[number_of(level)]; }

size_t push_capture() {
  Captures& all = captures();
  absl::MutexLock lock(&all.mu);
  all.stack.emplace_back();
  all.any.store(true, std::memory_order_relaxed);
  return all.stack.size() - 1;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const LogLine& line) {
  return out << letter_of(line.level) << " " << line.text;
}

LogCapture::LogCapture() : depth_(push_capture()) {}

LogCapture::~LogCapture() {
  Captures& all = captures();
  absl::MutexLock lock(&all.mu);
  MUSTER_CHECK(all.stack.size() == depth_ + 1) << "log captures must end in the reverse order of their begin";
  all.stack.pop_back();
  all.any.store(!all.stack.empty(), std::memory_order_relaxed);
}

std::vector<LogLine> LogCapture::lines() const {
  Captures& all = captures();
  absl::MutexLock lock(&all.mu);
  return all.stack[depth_];
}

bool LogCapture::contains(std::string_view words) const {
  for (const LogLine& line : lines()) {
    if (line.text.find(words) != std::string::npos) return true;
  }
  return false;
}

namespace log_internal {

bool enabled(LogLevel level) {
  return static_cast<int>(level) >= process_threshold() || captures().any.load(std::memory_order_relaxed);
}

std::string format(const LogLine& line, std::string_view time, bool colour) {
  static constexpr const char* kColours[] = {"\033[90m", "\033[32m", "\033[33m", "\033[31m"};
  const std::string letter(1, letter_of(line.level));
  return str_cat(colour ? str_cat(kColours[number_of(line.level)], letter, "\033[0m") : letter, " ", time, " ",
                 line.text);
}

int threshold(const char* setting) {
  const std::string_view word = setting ? setting : "info";
  if (word == "none") return 3;
  if (word == "error") return 2;
  if (word == "warning") return 1;
  if (word == "debug") return -1;
  if (word != "info" && !word.empty()) {
    // Not by MUSTER_LOG, which asks for what is being found out here.
    Message(LogLevel::kWarning).stream() << "MUSTER_LOG is \"" << word
                                         << "\", expected debug, info, warning, error or none; taken as info";
  }
  return 0;
}

Message::~Message() {
  LogLine line{level_, std::move(stream_).str()};
  if (captured(level_, line.text)) return;
  static const bool terminal = isatty(STDERR_FILENO) != 0, colour = terminal && !std::getenv("NO_COLOR");
  // One call, so that the lines of two threads or processes do not mix.
  const std::string text = str_cat(terminal ? over_open_line() : "", format(line, time_of_day(), colour), "\n");
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace log_internal
}  // namespace muster
