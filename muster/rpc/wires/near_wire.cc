#include "muster/rpc/wires/near_wire.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "muster/base/blocking.h"
#include "muster/near/near_socket.h"

namespace muster {
namespace {

constexpr size_t kMostWords = 4 << 10;                   // bytes of a method's name, or of what a status says
constexpr size_t kMostParts = 64;                        // of a message; more are not sent this way
constexpr int kMostWires = 16;                           // of a channel; calls beyond that go by gRPC
constexpr int kMostWireFailures = 4;                     // one after the other, before there are no more wires
constexpr int kPassOver = 256;                           // calls that go by gRPC after an answer that was too large
constexpr std::chrono::microseconds kMomentOfWire(200);  // less than it takes to wake two threads
constexpr std::chrono::microseconds kLookOut(400);       // for an answer, if those before came within this
constexpr int kLookAtDead = 1'000;                       // ms between two looks at whether a task is there

NearWire::Answer lost_with_wire() { return {.status = {grpc::StatusCode::UNAVAILABLE, "the wire was closed"}}; }

bool readable(const Descriptor& socket, std::chrono::microseconds within) {
  pollfd end{.fd = socket.number(), .events = POLLIN, .revents = 0};
  const timespec time{.tv_sec = within.count() / 1'000'000, .tv_nsec = within.count() % 1'000'000 * 1'000};
  return ::ppoll(&end, 1, &time, nullptr) != 0;
}

// What was received, until a reader tells whoever asked for it.
class AnswerOfWire final : public NetworkEvent {
 public:
  AnswerOfWire(NearWireAnswers::Received received, NearWire::Answer answer)
      : received_(std::move(received)), answer_(std::move(answer)) {}

  void happened(bool) override {
    const std::unique_ptr<AnswerOfWire> self(this);
    received_(std::move(answer_));
  }

 private:
  const NearWireAnswers::Received received_;
  NearWire::Answer answer_;
};

uint64_t next_wire_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

}  // namespace

bool send_on_near_wire(const Descriptor& socket, const NearWireHead& head, std::string_view words,
                       const grpc::ByteBuffer* message) {
  std::vector<grpc::Slice> slices;
  if (message != nullptr && (message->Length() > kMostOnNearWire || !message->Dump(&slices).ok())) return false;
  if (slices.size() > kMostParts || words.size() > kMostWords) return false;
  std::array<iovec, kMostParts + 2> parts;
  size_t count = 0, bytes = 0;
  auto add = [&](const void* from, size_t size) {
    if (size == 0) return;
    parts[count++] = {const_cast<void*>(from), size};
    bytes += size;
  };
  add(&head, sizeof head);
  add(words.data(), words.size());
  for (const grpc::Slice& slice : slices) add(slice.begin(), slice.size());
  msghdr header{};
  header.msg_iov = parts.data();
  header.msg_iovlen = count;
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket.number(), &header, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

Received receive_on_near_wire(const Descriptor& socket, NearWireMessage& message) {
  thread_local std::vector<char> buffer(sizeof(NearWireHead) + kMostWords + kMostOnNearWire);
  ssize_t got = 0;
  do {
    got = ::recv(socket.number(), buffer.data(), buffer.size(), MSG_DONTWAIT | MSG_TRUNC);
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return Received::kNothing;
  if (got < static_cast<ssize_t>(sizeof message.head) || got > static_cast<ssize_t>(buffer.size()))
    return Received::kEnd;
  std::memcpy(&message.head, buffer.data(), sizeof message.head);
  message.rest = {buffer.data() + sizeof message.head, static_cast<size_t>(got) - sizeof message.head};
  return Received::kMessage;
}

grpc::ByteBuffer message_of(std::span<const char> bytes) {
  const grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

// ---- One wire
std::optional<NearWire::Answer> NearWire::receive() {
  NearWireMessage received;
  const Received what = receive_on_near_wire(socket_, received);
  if (what == Received::kNothing) return std::nullopt;
  if (what == Received::kMessage) {
    switch (received.head.word) {
      case NearWireWord::kAnswer: return Answer{.message = message_of(received.rest)};
      case NearWireWord::kElsewhere:
        return Answer{.status = {grpc::StatusCode::UNAVAILABLE, "is too large for a wire"}, .elsewhere = true};
      case NearWireWord::kRefused: {
        const auto code = static_cast<grpc::StatusCode>(std::clamp<uint32_t>(received.head.number, 1, 16));
        return Answer{.status = {code, std::string(received.rest.data(), received.rest.size())}};
      }
      default: break;
    }
  }
  broken_ = true;
  return lost_with_wire();
}

NearWire::Answer NearWire::wait(const Alive& alive) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  const bool looks = habit_.looks_out();
  std::optional<Answer> answer;
  auto came = [&] { return (answer = receive()).has_value(); };
  if (!looks || !look_out(kMomentOfWire, came)) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(begin + kMomentOfWire - Clock::now());
    if (left.count() > 0 && readable(socket_, left)) answer = receive();
  }
  if (!answer) {
    const Waiting waiting;  // from here on others read for whom this thread does
    if (!looks || !look_out(kLookOut - kMomentOfWire, came)) answer = wait_asleep(alive);
  }
  habit_.learn(Clock::now() - begin < kLookOut);
  return *std::move(answer);
}

NearWire::Answer NearWire::wait_asleep(const Alive& alive) {
  while (true) {
    if (!readable(socket_, std::chrono::milliseconds(kLookAtDead)) && !alive()) {
      broken_ = true;
      return lost_with_wire();
    }
    if (auto answer = receive()) return *std::move(answer);
  }
}

void NearWire::break_off() { ::shutdown(socket_.number(), SHUT_RDWR); }

// ---- Answers that nobody waits for
NearWireAnswers& NearWireAnswers::instance() {
  static NearWireAnswers& answers = *new NearWireAnswers;
  return answers;
}

NearWireAnswers::NearWireAnswers()
    : watched_(::epoll_create1(EPOLL_CLOEXEC)),
      looked_(std::chrono::steady_clock::now().time_since_epoch().count()),
      readers_([this](void** tag, bool* ok, auto* waited) { return next(tag, ok, waited); },
               {.most_turns = static_cast<int>(std::clamp(std::thread::hardware_concurrency() / 2, 1U, 8U))}) {}

bool NearWireAnswers::start(const std::shared_ptr<NearWire>& wire, const std::string& method,
                            const grpc::ByteBuffer& message, NearWire::Alive alive, Received received) {
  Calls& calls = calls_of(wire->number());
  {
    absl::MutexLock lock(&calls.mu);
    calls.by_wire[wire->number()] = {wire, std::move(alive), std::move(received)};
  }
  if (wire->send(method, message) && watch(*wire)) return true;
  wire->broken_ = true;
  wire->break_off();  // nobody answers what may have been sent
  absl::MutexLock lock(&calls.mu);
  calls.by_wire.erase(wire->number());
  return false;
}

// For one event: whoever has the wire next may wait for its answer by itself.
bool NearWireAnswers::watch(NearWire& wire) const {
  epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = wire.number()}};
  const int what = wire.watched_ ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  if (!wire.watched_) wire.watched_ = true;  // once: the event that hands the wire on comes after it was added
  return ::epoll_ctl(watched_.number(), what, wire.socket().number(), &event) == 0;
}

bool NearWireAnswers::next(void** tag, bool* ok, std::chrono::nanoseconds* waited) {
  using Clock = std::chrono::steady_clock;
  while (true) {
    const Clock::time_point begin = Clock::now();
    epoll_event event{};
    const bool came = ::epoll_wait(watched_.number(), &event, 1, kLookAtDead) == 1;
    const Clock::time_point now = Clock::now();
    Clock::rep looked = looked_.load(std::memory_order_relaxed);
    const bool look = now.time_since_epoch() - Clock::duration(looked) >= std::chrono::milliseconds(kLookAtDead);
    if (look && looked_.compare_exchange_strong(looked, now.time_since_epoch().count())) break_those_of_the_dead();
    NetworkEvent* const answer = came ? answered(event.data.u64) : nullptr;
    if (answer == nullptr) continue;
    *waited = now - begin;
    *tag = answer->tag();
    *ok = true;
    return true;
  }
}

NetworkEvent* NearWireAnswers::answered(uint64_t number) {
  Calls& calls = calls_of(number);
  std::shared_ptr<NearWire> wire;
  {
    absl::MutexLock lock(&calls.mu);
    const auto found = calls.by_wire.find(number);
    if (found == calls.by_wire.end()) return nullptr;
    wire = found->second.wire;
  }
  // The event was for this thread alone, so the call is still its own.
  std::optional<NearWire::Answer> answer = wire->receive();
  if (!answer && watch(*wire)) return nullptr;
  if (!answer) answer = lost_with_wire();
  absl::MutexLock lock(&calls.mu);
  const auto found = calls.by_wire.find(number);
  auto* const event = new AnswerOfWire(std::move(found->second.received), *std::move(answer));
  calls.by_wire.erase(found);
  return event;
}

void NearWireAnswers::break_those_of_the_dead() {
  std::vector<std::pair<std::shared_ptr<NearWire>, NearWire::Alive>> under_way;
  for (Calls& calls : calls_) {
    absl::MutexLock lock(&calls.mu);
    for (const auto& [number, call] : calls.by_wire) under_way.emplace_back(call.wire, call.alive);
  }
  for (const auto& [wire, alive] : under_way) {
    if (!alive()) wire->break_off();
  }
}

// ---- Those of a channel
void NearWires::open(std::string door, const NearWireSecret& secret, pid_t process) {
  std::vector<std::shared_ptr<NearWire>> dropped;
  absl::MutexLock lock(&mu_);
  door_ = std::move(door);
  secret_ = secret;
  process_ = process;
  failures_ = 0;
  dropped.swap(idle_);
}

std::shared_ptr<NearWire> NearWires::take() {
  absl::MutexLock lock(&mu_);
  if (door_.empty()) return nullptr;
  if (passed_over_ > 0) {
    --passed_over_;
    return nullptr;
  }
  std::shared_ptr<NearWire> wire;
  if (!idle_.empty()) {
    wire = std::move(idle_.back());
    idle_.pop_back();
  } else {
    if (in_use_ >= kMostWires) return nullptr;
    Descriptor socket = connect_to(door_);
    const std::optional<NearProcess> process = socket ? NearProcess::behind(socket) : std::nullopt;
    const std::string_view words(reinterpret_cast<const char*>(&secret_), sizeof secret_);
    if (!process || process->id() != process_ || !send_on_near_wire(socket, {NearWireWord::kHello}, words)) {
      door_.clear();
      return nullptr;
    }
    wire = std::make_shared<NearWire>(std::move(socket), next_wire_number());
  }
  ++in_use_;
  return wire;
}

void NearWires::give_back(std::shared_ptr<NearWire> wire, const NearWire::Answer* answer) {
  absl::MutexLock lock(&mu_);
  --in_use_;
  if (answer != nullptr && answer->elsewhere) passed_over_ = kPassOver;
  if (answer != nullptr && !wire->broken()) {
    failures_ = 0;
    return idle_.push_back(std::move(wire));
  }
  if (++failures_ == kMostWireFailures) door_.clear();
}

}  // namespace muster
