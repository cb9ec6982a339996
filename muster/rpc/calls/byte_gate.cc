#include "muster/rpc/calls/byte_gate.h"

#include <algorithm>
#include <utility>

namespace muster {

std::optional<ByteGate::Hold> ByteGate::take(int64_t said, Enter enter) {
  constexpr int64_t kMostSaid = int64_t{1} << 50;  // those who are let in late can be added up
  const int64_t bytes = std::clamp<int64_t>(said, 1, kMostSaid);
  absl::MutexLock lock(&mu_);
  if (!waiting_.empty() || (held_ > 0 && bytes > most_ - held_)) {
    if (waiting_.empty()) moved_ = std::chrono::steady_clock::now();
    waiting_.push_back({bytes, std::move(enter)});
    return std::nullopt;
  }
  held_ += bytes;
  return Hold(shared_from_this(), bytes);
}

bool ByteGate::next(bool late, Waiting& found) {
  if (waiting_.empty()) return false;
  if (!late && held_ > 0 && waiting_.front().bytes > most_ - held_) return false;
  found = std::move(waiting_.front());
  waiting_.pop_front();
  held_ += found.bytes;
  moved_ = std::chrono::steady_clock::now();
  return true;
}

void ByteGate::end(int64_t bytes) {
  Waiting entering;
  {
    absl::MutexLock lock(&mu_);
    held_ -= bytes;
    moved_ = std::chrono::steady_clock::now();
  }
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (!next(/*late=*/false, entering)) return;
    }
    entering.enter(Hold(shared_from_this(), entering.bytes));
  }
}

void ByteGate::look() {
  Waiting entering;
  {
    absl::MutexLock lock(&mu_);
    const bool stuck = std::chrono::steady_clock::now() - moved_ >= patience_;
    if (!stuck || !next(/*late=*/true, entering)) return;
  }
  entering.enter(Hold(shared_from_this(), entering.bytes));
}

int64_t ByteGate::held() const {
  absl::MutexLock lock(&mu_);
  return held_;
}

size_t ByteGate::waiting() const {
  absl::MutexLock lock(&mu_);
  return waiting_.size();
}

}  // namespace muster
