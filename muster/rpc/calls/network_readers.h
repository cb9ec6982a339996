#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <grpcpp/completion_queue.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "muster/base/deadline_timer.h"
#include "muster/rpc/calls/backlog.h"

namespace muster {

// What a reader finds in the queue: something that gRPC was asked for has happened, or (not ok) will not.
class NetworkEvent {
 public:
  // What gRPC is asked with, and gives back.
  void* tag() {
    asked_.store(true, std::memory_order_release);
    return this;
  }
  static NetworkEvent& of(void* tag) {
    auto* event = static_cast<NetworkEvent*>(tag);
    // gRPC hands it from one thread to another; this says so where ThreadSanitizer can see it.
    (void)event->asked_.load(std::memory_order_acquire);
    return *event;
  }

  virtual void happened(bool ok) = 0;

 protected:
  ~NetworkEvent() = default;

 private:
  std::atomic<bool> asked_ = false;
};

struct NetworkReadersOptions {
  int most_turns = 1;
  int max_threads = 128;
  std::function<void()> look{};      // called now and then, by a thread that has nothing else to do
  std::function<void()> on_start{};  // called by each thread first
  absl::Duration threads_stay = absl::Seconds(10);
  absl::Duration look_every = absl::Milliseconds(50);
};

// The threads that wait for a server's events and handle them. Only so many as there are turns wait in the queue: of
// more than one, gRPC wakes two for each event, one to handle it and one to wait in its place. So there is one turn,
// and more only while events wait for whoever has it. A reader keeps its turn while it handles an event, unless it is
// about to block (see base/blocking.h): then the next one takes over. The same before it works for long, unless nothing
// has come lately while such work was done: a thread that is woken for nothing costs its core, and would handle the
// next event with what it needs in the cache of another one. Should one block that has not said so, its turn is taken
// from it a moment later, by one who looks for that while anything happens. A thread that nobody has needed for a while
// ends. Thread-safe.
class NetworkReaders {
 public:
  // Waits for the next event: its tag, and whether it has happened, and for how long it has waited, if taking it took
  // time, too. False: the queue is shut down, and empty.
  using Next = std::function<bool(void** tag, bool* ok, std::chrono::nanoseconds* waited)>;

  NetworkReaders(Next next, const NetworkReadersOptions& options);
  NetworkReaders(grpc::CompletionQueue& queue, const NetworkReadersOptions& options)
      : NetworkReaders([&queue](void** tag, bool* ok, auto*) { return queue.Next(tag, ok); }, options) {}
  // Waits until the queue is empty. REQUIRES: it is shut down.
  ~NetworkReaders();
  NetworkReaders(const NetworkReaders&) = delete;
  NetworkReaders& operator=(const NetworkReaders&) = delete;

  int threads() const ABSL_LOCKS_EXCLUDED(mu_);
  int turns() const { return turns_.load(std::memory_order_relaxed); }
  // Nothing has happened for a while, and whoever looks for stuck readers sleeps until something does.
  bool resting() const { return resting_.load(std::memory_order_relaxed); }

 private:
  struct Reader {
    std::atomic<bool> has_turn = false;
    std::atomic<uint64_t> moves = 0;  // odd while it handles an event
    Backlog backlog;                  // its own
    uint64_t events_then = 0;  // likewise: how many had come when it gave its turn away for long work; 0: it has not
    // The rest is guarded by mu_, which a nested struct cannot say.
    uint64_t seen_moves = 0;  // at the last look
    bool chosen = false;      // for a free turn
    SteadyCondVar woken;
    std::jthread thread;
  };

  void read(Reader& self) ABSL_LOCKS_EXCLUDED(mu_);
  // By how long a reader has waited for an event: another turn, or one less.
  void adapt_turns(Reader& self, std::chrono::nanoseconds waited) ABSL_LOCKS_EXCLUDED(mu_);
  // False: it was not needed, and has left the readers.
  bool take_turn(Reader& self) ABSL_LOCKS_EXCLUDED(mu_);
  void leave(Reader& self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void give_turn(Reader& reader) ABSL_LOCKS_EXCLUDED(mu_);
  void give_turn_for_long(Reader& reader) ABSL_LOCKS_EXCLUDED(mu_);
  void learn_from_long(Reader& reader);
  void pass_turn(Reader& reader) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void wake_or_add() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void pass_stuck_turns() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of the one who looks. False: so much time has passed that it is to look again.
  bool wait_for_look(Reader& self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void wake_looker() ABSL_LOCKS_EXCLUDED(mu_);

  const Next next_;
  const NetworkReadersOptions options_;

  std::atomic<int> turns_ = 1;  // changes under mu_
  std::atomic<uint64_t> events_ = 0;
  std::atomic<int> in_vain_ = 0;  // turns, one after the other, that were given away for long work, or kept since
  std::atomic<bool> resting_ = false;

  mutable absl::Mutex mu_;
  int free_turns_ ABSL_GUARDED_BY(mu_) = 1;
  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t seen_events_ ABSL_GUARDED_BY(mu_) = 0;   // at the last look
  int quiet_looks_ ABSL_GUARDED_BY(mu_) = 0;        // one after the other, between which nothing happened
  std::vector<Reader*> idle_ ABSL_GUARDED_BY(mu_);  // the last one is the next to be woken
  std::vector<std::unique_ptr<Reader>> readers_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Reader>> left_ ABSL_GUARDED_BY(mu_);  // to be joined
};

}  // namespace muster
