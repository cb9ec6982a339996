#include "muster/base/progress.h"

#include <absl/strings/str_format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <limits>
#include <utility>

#include "muster/base/strings.h"
#include "muster/base/terminal_line.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kRedrawEvery = std::chrono::milliseconds(50);
constexpr int kBarColumns = 24;

ProgressOptions completed(ProgressOptions options) {
  if (options.total) options.total = std::max<int64_t>(*options.total, 0);
  if (!options.now) options.now = [] { return Clock::now(); };
  return options;
}

int file_of(const std::ostream& out) { return &out == &std::cout ? STDOUT_FILENO : STDERR_FILENO; }

bool is_terminal(const std::ostream& out) {
  return (&out == &std::cout || &out == &std::cerr) && isatty(file_of(out)) != 0;
}

int terminal_width(const std::ostream& out) {
  winsize size = {};
  const bool known = ioctl(file_of(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

// 0:07, 12:03, 1:02:03
std::string clock_time(double total_seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(total_seconds));
  if (whole >= 3600) return absl::StrFormat("%d:%02d:%02d", whole / 3600, whole / 60 % 60, whole % 60);
  return absl::StrFormat("%d:%02d", whole / 60, whole % 60);
}

std::string per_second(double rate) {
  if (rate >= 10e6) return absl::StrFormat("%.1fM/s", rate / 1e6);
  if (rate >= 10e3) return absl::StrFormat("%.1fk/s", rate / 1e3);
  if (rate >= 10) return absl::StrFormat("%.0f/s", rate);
  return absl::StrFormat("%.2f/s", rate);
}

// Cuts to `columns` characters, not bytes: a title may be in any language.
std::string cut(std::string text, int columns) {
  for (size_t i = 0; i < text.size(); ++i) {
    const bool starts_a_character = (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
    if (starts_a_character && columns-- == 0) {
      text.resize(i);
      break;
    }
  }
  return text;
}

int columns_of(std::string_view text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string noted(std::string_view note) { return note.empty() ? std::string() : str_cat("  ", note); }

}  // namespace

ProgressBar::ProgressBar(ProgressOptions options)
    : options_(completed(std::move(options))),
      out_(options_.out ? *options_.out : std::cerr),
      tty_(options_.tty.value_or(is_terminal(out_))),
      start_(options_.now()) {}

ProgressBar::~ProgressBar() {
  if (!tty_ || !drawn_ || finished_) return;
  out_ << "\n" << std::flush;
  set_line_open(false);
}

void ProgressBar::update(int64_t done, std::string_view note) {
  if (finished_) return;
  done_ = std::clamp<int64_t>(done, 0, options_.total.value_or(std::numeric_limits<int64_t>::max()));
  if (options_.total && done_ == *options_.total) return finish(note);
  const Clock::time_point now = options_.now();
  if (tty_) {
    if (!drawn_ || now - *drawn_ >= kRedrawEvery) draw(now, note);
  } else if (options_.total && done_ * 10 >= next_tenth_ * *options_.total) {
    print(now, note);
  }
}

void ProgressBar::finish(std::string_view note) {
  if (std::exchange(finished_, true)) return;
  const double took = seconds(options_.now() - start_);
  out_ << (tty_ ? "\r\033[K" : "") << options_.title << "  " << counted() << absl::StrFormat(" in %.1f s", took);
  if (options_.rate && took > 0 && done_ > 0) out_ << " (" << per_second(static_cast<double>(done_) / took) << ")";
  out_ << noted(note) << "\n" << std::flush;
  if (tty_) set_line_open(false);
}

void ProgressBar::erase() {
  if (tty_ && drawn_ && !finished_) {
    out_ << "\r\033[K" << std::flush;
    set_line_open(false);
  }
  drawn_.reset();
}

std::string ProgressBar::counted() const {
  return options_.total ? str_cat(done_, "/", *options_.total) : str_cat(done_);
}

std::string ProgressBar::figures(Clock::time_point now) const {
  const double elapsed = seconds(now - start_);
  std::string text = counted();
  if (elapsed > 0 && done_ > 0) {
    const double rate = static_cast<double>(done_) / elapsed;
    if (options_.rate) str_append(text, "  ", per_second(rate));
    const double left = options_.total ? static_cast<double>(*options_.total - done_) / rate : elapsed;
    str_append(text, "  ", clock_time(left), options_.total ? " left" : "");
  }
  return text;
}

void ProgressBar::draw(Clock::time_point now, std::string_view note) {
  const int least_bar_columns = options_.total ? 4 : 0;
  const double part = options_.total ? static_cast<double>(done_) / static_cast<double>(*options_.total) : 0;
  // One column stays free: many terminals wrap when the last one is written.
  const int width = options_.width.value_or(terminal_width(out_)) - 1;
  const std::string head = options_.total ? absl::StrFormat("%s %3d%% [", options_.title, static_cast<int>(part * 100))
                                          : str_cat(options_.title, "  ");
  const std::string tail = str_cat(options_.total ? "] " : "", figures(now));
  // Where there is too little room the bar gets shorter, and then the note: whole parts of it go, the last one first.
  const auto room = [&] { return width - columns_of(head) - columns_of(tail) - columns_of(noted(note)); };
  while (!note.empty() && room() < least_bar_columns) {
    const size_t gap = note.rfind("  ");
    note = gap == std::string_view::npos ? std::string_view() : note.substr(0, gap);
  }
  std::string bar;
  if (options_.total) {
    const int columns = std::clamp(room(), least_bar_columns, kBarColumns);
    bar.assign(static_cast<size_t>(part * columns), '=');
    bar += '>';
    bar.resize(static_cast<size_t>(columns), ' ');
  }
  out_ << "\r" << cut(str_cat(head, bar, tail, noted(note)), width) << "\033[K" << std::flush;
  drawn_ = now;
  set_line_open(true);
}

void ProgressBar::print(Clock::time_point now, std::string_view note) {
  const int64_t tenths = done_ * 10 / *options_.total;
  out_ << options_.title << absl::StrFormat(" %3d%% ", tenths * 10) << figures(now) << noted(note) << "\n"
       << std::flush;
  next_tenth_ = tenths + 1;
}

}  // namespace muster
