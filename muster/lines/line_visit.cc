#include "muster/lines/line_visit.h"

#include <poll.h>
#include <sys/socket.h>

#include "muster/base/log.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

constexpr int kMostFailures = 3;  // after that, everything goes with the messages for a while
constexpr auto kTryAgain = std::chrono::minutes(1);
constexpr auto kReachedWithin = std::chrono::seconds(2);

}  // namespace

LineVisit::LineVisit(std::string address) : host_(host_of_address(address)), caller_(random_id()) {}

std::shared_ptr<LineIn> LineVisit::in(uint64_t key) {
  absl::MutexLock lock(&mu_);
  const auto it = in_.find(key);
  return it == in_.end() ? nullptr : it->second;
}

size_t LineVisit::count(LineWay way) {
  if (way == LineWay::kToDoor) return out_.look();
  absl::erase_if(in_, [](const auto& known) { return known.second->gone(); });
  return in_.size();
}

void LineVisit::want(LineWay way, const Means& means) {
  {
    absl::MutexLock lock(&mu_);
    const bool in_vain = failures_ >= kMostFailures && std::chrono::steady_clock::now() - failed_ < kTryAgain;
    if (laying_ || given_up_ || in_vain || count(way) >= kMostLines || !Line::may_have_another()) return;
    laying_ = true;
  }
  means.ask(0, [self = shared_from_this(), way, means](const Status& status, LineDoor::Place place, bool) {
    if (!status.ok()) return self->failed();
    if (place.port <= 0) return self->give_up();
    means.run_in_background([self, way, means, place] { self->connect(way, means, place); });
  });
}

void LineVisit::connect(LineWay way, const Means& means, LineDoor::Place place) {
  Descriptor socket = begin_to_connect(host_, place.port, place.ip4_only);
  const LineHello hello{.key = random_id(), .caller = caller_, .way = way};
  if (!socket || !becomes(socket, POLLOUT, std::chrono::steady_clock::now() + kReachedWithin) ||
      ::send(socket.number(), &hello, sizeof hello, MSG_NOSIGNAL) != sizeof hello) {
    return failed();
  }
  make_ready(socket);
  // In a shared_ptr, because a std::function is copied.
  auto held = std::make_shared<Descriptor>(std::move(socket));
  means.ask(hello.key, [self = shared_from_this(), hello, held](const Status& status, LineDoor::Place, bool let_in) {
    if (!status.ok() || !let_in) return self->failed();
    self->laid(hello, std::move(*held));
  });
}

void LineVisit::laid(const LineHello& hello, Descriptor socket) {
  absl::MutexLock lock(&mu_);
  laying_ = false;
  failures_ = 0;
  if (hello.way == LineWay::kToDoor) {
    out_.add(std::make_shared<LineOut>(std::move(socket), hello.key));
  } else {
    in_[hello.key] = std::make_shared<LineIn>(std::move(socket), hello.key);
  }
}

void LineVisit::failed() {
  absl::MutexLock lock(&mu_);
  laying_ = false;
  failed_ = std::chrono::steady_clock::now();
  if (++failures_ == kMostFailures) {
    MUSTER_LOG(info)
        << host_ << " cannot be reached at a port beside that of its server: large tensors travel with their messages";
  }
}

void LineVisit::give_up() {
  absl::MutexLock lock(&mu_);
  laying_ = false;
  given_up_ = true;
}

}  // namespace muster
