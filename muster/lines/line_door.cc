#include "muster/lines/line_door.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace muster {
namespace {

constexpr int kMostVisitors = 32;  // who are not known yet
constexpr int kMostAtOnce = 256;   // who are looked at by one call
constexpr auto kSweep = std::chrono::seconds(1);

}  // namespace

LineDoor::Place LineDoor::place() {
  absl::MutexLock lock(&mu_);
  if (!door_.listener && host_) door_ = listen_at_any_port(*host_);
  hear_visitors();
  return {door_.port, door_.ip4_only};
}

bool LineDoor::let_in(uint64_t key) {
  absl::MutexLock lock(&mu_);
  if (!door_.listener || key == 0) return false;
  hear_visitors();
  drop_gone();
  const auto it = std::find_if(visitors_.begin(), visitors_.end(), [&](const Visitor& visitor) {
    return visitor.got == sizeof visitor.hello && visitor.hello.key == key;
  });
  if (it == visitors_.end()) return false;
  Visitor visitor = std::move(*it);
  visitors_.erase(it);
  return admit(std::move(visitor));
}

void LineDoor::hear_visitors() {
  for (int i = 0; i < kMostAtOnce && door_.listener; ++i) {
    Descriptor socket = accept_at(door_);
    if (!socket) break;
    if (visitors_.size() == kMostVisitors) visitors_.erase(visitors_.begin());
    visitors_.push_back({.socket = std::move(socket)});
  }
  std::erase_if(visitors_, [before = Clock::now() - may_visit_](Visitor& visitor) {
    if (visitor.came < before) return true;
    if (visitor.got == sizeof visitor.hello) return false;
    const ssize_t count = ::recv(visitor.socket.number(), reinterpret_cast<char*>(&visitor.hello) + visitor.got,
                                 sizeof visitor.hello - visitor.got, MSG_DONTWAIT);
    if (count < 0) return errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
    visitor.got += static_cast<size_t>(count);
    return count == 0 || (visitor.got == sizeof visitor.hello && visitor.hello.word != LineHello::kWord);
  });
}

bool LineDoor::admit(Visitor visitor) {
  const auto [key, caller] = std::pair(visitor.hello.key, visitor.hello.caller);
  const bool known_way = visitor.hello.way == LineWay::kToDoor || visitor.hello.way == LineWay::kFromDoor;
  if (caller == 0 || !known_way || in_.contains(key) || !Line::may_have_another()) return false;
  Caller& of = callers_[caller];
  if ((visitor.hello.way == LineWay::kToDoor ? of.in : of.out->size()) >= kMostLines) return false;
  make_ready(visitor.socket);
  if (visitor.hello.way == LineWay::kFromDoor) {
    of.out->add(std::make_shared<LineOut>(std::move(visitor.socket), key));
  } else {
    in_[key] = {.line = std::make_shared<LineIn>(std::move(visitor.socket), key), .caller = caller};
    ++of.in;
  }
  return true;
}

std::shared_ptr<LinesOut> LineDoor::to(uint64_t caller) {
  if (caller == 0 || !host_) return nullptr;
  static const auto& none = *new std::shared_ptr<LinesOut>(std::make_shared<LinesOut>());
  absl::MutexLock lock(&mu_);
  const auto it = callers_.find(caller);
  return it == callers_.end() ? none : it->second.out;
}

std::shared_ptr<LineIn> LineDoor::from(uint64_t key) {
  absl::MutexLock lock(&mu_);
  const auto it = in_.find(key);
  return it == in_.end() ? nullptr : it->second.line;
}

void LineDoor::sweep() {
  absl::MutexLock lock(&mu_);
  if (!door_.listener || Clock::now() - swept_ < kSweep) return;
  hear_visitors();
  drop_gone();
}

void LineDoor::drop_gone() {
  swept_ = Clock::now();
  absl::erase_if(in_, [&](const auto& known) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!known.second.line->gone()) return false;
    --callers_[known.second.caller].in;
    return true;
  });
  absl::erase_if(callers_, [](const auto& known) { return known.second.in == 0 && known.second.out->look() == 0; });
}

void LineDoor::break_all() {
  absl::MutexLock lock(&mu_);
  for (const auto& [key, known] : in_) known.line->break_off();
  for (const auto& [key, caller] : callers_) caller.out->break_all();
}

size_t LineDoor::lines() {
  absl::MutexLock lock(&mu_);
  size_t count = in_.size();
  for (const auto& [key, caller] : callers_) count += caller.out->size();
  return count;
}

}  // namespace muster
