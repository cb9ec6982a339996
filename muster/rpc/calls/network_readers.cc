#include "muster/rpc/calls/network_readers.h"

#include <algorithm>
#include <utility>

#include "muster/base/blocking.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLull(2);  // nobody else is needed if one waits so long
constexpr int kInVain = 8;                     // turns given away for long work, until it keeps them
constexpr int kTryAgain = 32;                  // long works that kept their turn, before one gives it away to see
constexpr int kRest = 20;                      // looks at which nothing had happened, before there are none

}  // namespace

NetworkReaders::NetworkReaders(Next next, const NetworkReadersOptions& options)
    : next_(std::move(next)), options_(options) {
  absl::MutexLock lock(&mu_);
  wake_or_add();
}

NetworkReaders::~NetworkReaders() {
  std::vector<std::unique_ptr<Reader>> readers, left;
  {
    absl::MutexLock lock(&mu_);
    closing_ = true;  // no thread is added from here on, and none leaves
    for (Reader* reader : idle_) reader->woken.signal();
    readers.swap(readers_);
    left.swap(left_);
  }
  readers.clear();
}

int NetworkReaders::threads() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(readers_.size());
}

void NetworkReaders::read(Reader& self) {
  if (options_.on_start) options_.on_start();
  const WhenBlocking blocking([&] { give_turn(self); }, [&] { give_turn_for_long(self); });
  while (true) {
    if (!self.has_turn.load(std::memory_order_relaxed) && !take_turn(self)) return;
    void* tag = nullptr;
    bool ok = false;
    const Clock::time_point begin = Clock::now();
    std::chrono::nanoseconds waited(-1);
    if (!next_(&tag, &ok, &waited)) return;
    adapt_turns(self, waited.count() < 0 ? Clock::now() - begin : waited);
    events_.fetch_add(1, std::memory_order_relaxed);
    // Whoever begins to rest does so before it sees that nobody moves, or is seen here.
    self.moves.fetch_add(1, std::memory_order_seq_cst);
    if (resting_.load(std::memory_order_seq_cst)) wake_looker();
    NetworkEvent::of(tag).happened(ok);
    self.moves.fetch_add(1, std::memory_order_relaxed);
    learn_from_long(self);
  }
}

void NetworkReaders::give_turn_for_long(Reader& reader) {
  if (!reader.has_turn.load(std::memory_order_relaxed)) return;
  if (in_vain_.load(std::memory_order_relaxed) >= kInVain) {
    if (in_vain_.fetch_add(1, std::memory_order_relaxed) < kInVain + kTryAgain) return;
    in_vain_.store(kInVain, std::memory_order_relaxed);
  }
  reader.events_then = events_.load(std::memory_order_relaxed);
  give_turn(reader);
}

void NetworkReaders::learn_from_long(Reader& reader) {
  const uint64_t then = std::exchange(reader.events_then, 0);
  if (then == 0) return;
  if (events_.load(std::memory_order_relaxed) == then) {
    in_vain_.fetch_add(1, std::memory_order_relaxed);
  } else {
    in_vain_.store(0, std::memory_order_relaxed);
  }
}

void NetworkReaders::adapt_turns(Reader& self, std::chrono::nanoseconds waited) {
  if (self.backlog.grows(waited) && turns() < options_.most_turns) {
    absl::MutexLock lock(&mu_);
    if (turns_ == options_.most_turns || free_turns_ > 0) return;
    ++turns_;
    ++free_turns_;
    wake_or_add();
  } else if (waited > kLull && turns() > 1) {
    absl::MutexLock lock(&mu_);
    if (turns_ == 1 || !self.has_turn.exchange(false, std::memory_order_relaxed)) return;
    --turns_;
  }
}

bool NetworkReaders::take_turn(Reader& self) {
  std::vector<std::unique_ptr<Reader>> left;  // are joined without the lock
  absl::MutexLock lock(&mu_);
  if (free_turns_ == 0 && !closing_) {
    idle_.push_back(&self);
    while (free_turns_ == 0 && !closing_) {
      // One of them looks after those who have a turn: the first, who is the last to be woken.
      const bool looks = idle_.front() == &self;
      const bool nobody_woke_it = looks ? !wait_for_look(self) : !self.woken.wait_for(mu_, options_.threads_stay);
      const bool chosen = std::exchange(self.chosen, false);
      if (!nobody_woke_it) continue;
      if (!looks && !chosen && free_turns_ == 0 && !closing_ && idle_.front() != &self) {
        left.swap(left_);
        leave(self);
        return false;
      }
      pass_stuck_turns();
      if (!options_.look) continue;
      mu_.Unlock();
      options_.look();
      mu_.Lock();
    }
    const bool looked_after_others = idle_.front() == &self;
    std::erase(idle_, &self);
    if (looked_after_others && !idle_.empty()) idle_.front()->woken.signal();  // It does so from now on.
  }
  if (free_turns_ == 0) return true;  // At the end all of them empty the queue.
  --free_turns_;
  self.has_turn.store(true, std::memory_order_relaxed);
  // Somebody has to be left to look.
  if (idle_.empty()) wake_or_add();
  return true;
}

// What is to be called now and then gives it no rest.
bool NetworkReaders::wait_for_look(Reader& self) {
  const uint64_t events = events_.load(std::memory_order_relaxed);
  quiet_looks_ = events == std::exchange(seen_events_, events) ? quiet_looks_ + 1 : 0;
  if (quiet_looks_ > kRest && !options_.look) {
    resting_.store(true, std::memory_order_seq_cst);
    const bool nobody_moves = std::none_of(readers_.begin(), readers_.end(), [](const auto& reader) {
      return reader->has_turn.load(std::memory_order_relaxed) && reader->moves.load(std::memory_order_seq_cst) % 2 == 1;
    });
    if (nobody_moves) {
      self.woken.wait(mu_);
      resting_ = false;
      return true;
    }
    resting_ = false;
  }
  return self.woken.wait_for(mu_, options_.look_every);
}

void NetworkReaders::wake_looker() {
  absl::MutexLock lock(&mu_);
  if (resting_.exchange(false) && !idle_.empty()) idle_.front()->woken.signal();
}

void NetworkReaders::leave(Reader& self) {
  std::erase(idle_, &self);
  const auto found =
      std::find_if(readers_.begin(), readers_.end(), [&](const auto& one) { return one.get() == &self; });
  left_.push_back(std::move(*found));
  readers_.erase(found);
}

void NetworkReaders::give_turn(Reader& reader) {
  if (!reader.has_turn.load(std::memory_order_relaxed)) return;
  absl::MutexLock lock(&mu_);
  pass_turn(reader);
}

void NetworkReaders::pass_turn(Reader& reader) {
  if (!reader.has_turn.exchange(false, std::memory_order_relaxed)) return;
  ++free_turns_;
  wake_or_add();
}

void NetworkReaders::wake_or_add() {
  for (auto reader = idle_.rbegin(); reader != idle_.rend(); ++reader) {
    if ((*reader)->chosen) continue;
    (*reader)->chosen = true;
    return (*reader)->woken.signal();
  }
  if (closing_ || static_cast<int>(readers_.size()) >= options_.max_threads) return;
  Reader& added = *readers_.emplace_back(std::make_unique<Reader>());
  added.thread = std::jthread([this, &added] { read(added); });
}

void NetworkReaders::pass_stuck_turns() {
  for (size_t i = 0; i < readers_.size(); ++i) {  // which may become more
    Reader& reader = *readers_[i];
    const uint64_t moves = reader.moves.load(std::memory_order_relaxed);
    const bool stuck = moves % 2 == 1 && moves == reader.seen_moves;
    reader.seen_moves = moves;
    if (stuck) pass_turn(reader);
  }
}

}  // namespace muster
