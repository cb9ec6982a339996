#include "muster/rpc/wires/near_wire_door.h"

#include <absl/strings/str_cat.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "muster/near/near_socket.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

constexpr uint64_t kListener = 0, kEnd = 1, kFirstWire = 2;  // numbers of what is watched

// Of a wire: each message is told of once, to one reader. Else the one that is told would have Linux tell another one,
// too, before it has read it.
constexpr uint32_t kHungUp = EPOLLRDHUP | EPOLLHUP | EPOLLERR, kOfWire = EPOLLIN | EPOLLRDHUP | EPOLLET;

// The network needs some, too.
size_t most_wires() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  return std::min<size_t>(limit.rlim_cur / 8, 4'096);
}

}  // namespace

// ---- One wire
bool WireToCaller::begin() {
  absl::MutexLock lock(&mu_);
  return !std::exchange(busy_, true);
}

void WireToCaller::when_gone(Gone gone) {
  {
    absl::MutexLock lock(&mu_);
    if (busy_) {
      gone_ = std::move(gone);
      return;
    }
  }
  gone();
}

WireToCaller::Gone WireToCaller::end() {
  absl::MutexLock lock(&mu_);
  busy_ = false;
  return std::exchange(gone_, nullptr);
}

// Before the answer is sent: the next call may come right after it.
bool WireToCaller::answer(const grpc::ByteBuffer& message) {
  end();
  if (message.Length() <= kMostOnNearWire) return send_on_near_wire(socket_, {NearWireWord::kAnswer}, {}, &message);
  send_on_near_wire(socket_, {NearWireWord::kElsewhere}, {});
  return false;
}

bool WireToCaller::refuse(const grpc::Status& status) {
  end();
  const std::string words = status.error_message().substr(0, 1'000);
  return send_on_near_wire(socket_, {NearWireWord::kRefused, static_cast<uint32_t>(status.error_code())}, words);
}

// ---- All of them
NearWireDoor::NearWireDoor(Take take, const NetworkReadersOptions& readers)
    : take_(std::move(take)),
      secret_{random_id(), random_id()},
      watched_(::epoll_create1(EPOLL_CLOEXEC)),
      end_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      last_(kFirstWire) {
  std::string name = absl::StrCat("muster-wires-", absl::Hex(random_id()), absl::Hex(random_id()));
  listener_ = listen_at(name);
  if (!listener_ || !watched_ || !end_ || !watch(listener_, kListener, EPOLLIN) || !watch(end_, kEnd, EPOLLIN)) return;
  name_ = std::move(name);
  readers_.emplace([this](void** tag, bool* ok, auto* waited) { return next(tag, ok, waited); }, readers);
}

NearWireDoor::~NearWireDoor() {
  const uint64_t once = 1;
  if (end_) (void)!::write(end_.number(), &once, sizeof once);  // which nobody reads: all readers see it
  readers_.reset();
}

size_t NearWireDoor::wires() const {
  absl::MutexLock lock(&mu_);
  return wires_.size();
}

void NearWireDoor::break_all() {
  absl::MutexLock lock(&mu_);
  for (const auto& [number, wire] : wires_) ::shutdown(wire->socket_.number(), SHUT_RDWR);
}

bool NearWireDoor::watch(const Descriptor& what, uint64_t number, uint32_t events) const {
  epoll_event event{.events = events, .data = {.u64 = number}};
  return ::epoll_ctl(watched_.number(), EPOLL_CTL_ADD, what.number(), &event) == 0;
}

bool NearWireDoor::next(void** tag, bool* ok, std::chrono::nanoseconds* waited) {
  const auto begin = std::chrono::steady_clock::now();
  while (true) {
    epoll_event event{};
    if (::epoll_wait(watched_.number(), &event, 1, -1) != 1) continue;
    *waited = std::chrono::steady_clock::now() - begin;
    const uint64_t number = event.data.u64;
    if (number == kEnd) return false;
    if (number == kListener) {
      let_in();
      continue;
    }
    const std::shared_ptr<WireToCaller> wire = find(number);
    NetworkEvent* const handling = wire ? read(wire, number, (event.events & kHungUp) != 0) : nullptr;
    if (handling == nullptr) continue;
    *tag = handling->tag();
    *ok = true;
    return true;
  }
}

void NearWireDoor::let_in() {
  while (Descriptor socket = accept_from(listener_)) {
    auto wire = std::make_shared<WireToCaller>(std::move(socket));
    absl::MutexLock lock(&mu_);
    if (wires_.size() >= most_wires()) continue;
    const uint64_t number = ++last_;
    if (watch(wire->socket_, number, kOfWire)) wires_[number] = std::move(wire);
  }
}

std::shared_ptr<WireToCaller> NearWireDoor::find(uint64_t number) const {
  absl::MutexLock lock(&mu_);
  const auto found = wires_.find(number);
  return found == wires_.end() ? nullptr : found->second;
}

NetworkEvent* NearWireDoor::read(const std::shared_ptr<WireToCaller>& wire, uint64_t number, bool hung_up) {
  std::optional<Arrived> arrived;
  {
    absl::MutexLock lock(&wire->reading_);
    NearWireMessage message;
    Received received = receive_on_near_wire(wire->socket_, message);
    if (received == Received::kMessage && !wire->greeted_ && greets(message)) {
      wire->greeted_ = true;
      received = receive_on_near_wire(wire->socket_, message);  // its first call may have come with it
    }
    if (received == Received::kNothing) return nullptr;
    const size_t length = message.head.number;
    const bool is_call = received == Received::kMessage && wire->greeted_ && message.head.word == NearWireWord::kCall;
    if (is_call && length <= message.rest.size() && wire->begin()) {
      arrived = {wire, std::string(message.rest.data(), length), message_of(message.rest.subspan(length))};
    }
  }
  std::optional<Handling> handling;
  if (arrived) handling = take_(*std::move(arrived));
  if (!handling) {
    drop(number);
    return nullptr;
  }
  wire->when_gone(std::move(handling->gone));
  if (hung_up) drop(number);  // which is not told again
  return handling->event;
}

bool NearWireDoor::greets(const NearWireMessage& message) const {
  NearWireSecret said;
  if (message.head.word != NearWireWord::kHello || message.rest.size() != sizeof said) return false;
  std::memcpy(&said, message.rest.data(), sizeof said);
  return ((said.high ^ secret_.high) | (said.low ^ secret_.low)) == 0;
}

void NearWireDoor::drop(uint64_t number) {
  std::shared_ptr<WireToCaller> wire;
  {
    absl::MutexLock lock(&mu_);
    const auto found = wires_.find(number);
    if (found == wires_.end()) return;
    wire = std::move(found->second);
    wires_.erase(found);
  }
  ::epoll_ctl(watched_.number(), EPOLL_CTL_DEL, wire->socket_.number(), nullptr);
  if (const WireToCaller::Gone gone = wire->end()) gone();
}

}  // namespace muster
