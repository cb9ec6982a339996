#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

namespace muster {

struct ProgressOptions {
  std::string title;
  std::optional<int64_t> total;  // nothing: nobody knows, and there is a line without a bar
  std::ostream* out = nullptr;   // stderr
  std::optional<bool> tty{};     // whether that is a terminal, if it is stderr or std::cout; others are none
  std::optional<int> width{};    // the terminal's, in columns
  bool rate = true;              // shows it
  std::function<std::chrono::steady_clock::time_point()> now{};  // the steady clock
};

// Shows how far a loop has come. On a terminal it is one line that redraws itself at most 20 times a second; elsewhere
// it is a line for every tenth of the way. Shows rate and time left (without a total: the time that it took so far),
// and a note of the caller's (say, the loss). Not thread-safe: the thread that works updates it.
class ProgressBar {
 public:
  explicit ProgressBar(ProgressOptions options);
  ~ProgressBar();  // Leaves the terminal on a fresh line.
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `done` counts from 0 to the total. At the total it finishes.
  void update(int64_t done, std::string_view note = {});

  // Prints the closing line: how much, how long, how fast. Later calls do nothing.
  void finish(std::string_view note = {});

  // Takes what is drawn off the terminal, so that another line can be where it was. The next update() draws it again.
  void erase();

 private:
  std::string counted() const;
  std::string figures(std::chrono::steady_clock::time_point now) const;
  void draw(std::chrono::steady_clock::time_point now, std::string_view note);
  void print(std::chrono::steady_clock::time_point now, std::string_view note);

  const ProgressOptions options_;
  std::ostream& out_;
  const bool tty_;
  const std::chrono::steady_clock::time_point start_;
  int64_t done_ = 0;
  int64_t next_tenth_ = 1;
  std::optional<std::chrono::steady_clock::time_point> drawn_{};
  bool finished_ = false;
};

}  // namespace muster
