// Threads that have something better to do than to wait.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

namespace muster {

// To be called before this thread waits for others or works for long. A thread that reads the network for a server runs
// short programs itself, which saves a change of threads; this makes it let another one read.
void about_to_block();
// To be called before this thread works for longer than it takes to wake another one, and waits for nobody: that one is
// woken only where there has been something for it to do lately.
void about_to_take_long();

// Asks again and again, for a moment at most, whether it is there: a thread that sleeps is woken late where its core
// sleeps, too. Ends early where others want the core, and does not even begin where there are few. False: not yet.
bool look_out(std::chrono::microseconds moment, const std::function<bool()>& there);

inline constexpr size_t kLongCopy = 256 << 10;  // bytes, whose copying takes longer than waking another thread

// What these do on this thread, while the object lives; `when_long` is `then`, too, unless it is given. One at a time
// per thread.
class WhenBlocking {
 public:
  explicit WhenBlocking(std::function<void()> then, std::function<void()> when_long = {});
  ~WhenBlocking();
  WhenBlocking(const WhenBlocking&) = delete;
  WhenBlocking& operator=(const WhenBlocking&) = delete;

 private:
  friend void about_to_block();
  friend void about_to_take_long();
  const std::function<void()> then_, when_long_;
};

// While it lives, this thread waits for others and needs no processor. Says about_to_block(), too.
class [[nodiscard]] Waiting {
 public:
  Waiting();
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  const class WhenWaiting* const told_;
};

// What happens at the begin and the end of a wait of this thread, while the object lives. One at a time per thread.
class WhenWaiting {
 public:
  WhenWaiting(std::function<void()> begins, std::function<void()> ends);
  ~WhenWaiting();
  WhenWaiting(const WhenWaiting&) = delete;
  WhenWaiting& operator=(const WhenWaiting&) = delete;

 private:
  friend class Waiting;
  const std::function<void()> begins_, ends_;
};

}  // namespace muster
