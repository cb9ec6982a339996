#include "muster/collective/wire_posts.h"

#include <ATen/Functions.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <exception>
#include <functional>
#include <span>

#include "muster/near/near_socket.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {
namespace {

constexpr size_t kMostDimensions = 64;
constexpr uint64_t kMostWords = 2 << 10;                 // of a failure
constexpr auto kPause = std::chrono::milliseconds(100);  // between two looks for room in a socket

}  // namespace

enum class WireWord : uint32_t { kTensor = 0x6d7057, kFailed };

struct WirePosts::Header {
  WireWord word{};
  int32_t code = 0;  // kTensor: the type. kFailed: of the status
  int64_t edge = 0;
  uint64_t bytes = 0;
  uint64_t dimensions = 0;  // their sizes come after the header, and then the bytes
};

struct WirePosts::Arrived {
  int from = 0;
  int64_t edge = 0;
  at::Tensor tensor{};
  Status ended{};  // not ok: nothing more will come
};

// The bytes of one socket as messages.
class WirePosts::Connection {
 public:
  explicit Connection(Descriptor s) : socket(std::move(s)) {}

  // Takes the next message that is here whole; what is here of another one is kept for the next call. Throws Error if
  // there will be no more. `place`: memory for it, if somebody has some ready.
  std::optional<std::pair<int64_t, at::Tensor>> next(const std::function<at::Tensor(int64_t edge)>& place) {
    while (true) {
      if (const size_t wanted = stage_bytes(); got_ < wanted) {
        const ssize_t count = ::recv(socket.number(), stage_memory() + got_, wanted - got_, MSG_DONTWAIT);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
        if (count <= 0) throw unavailable("has ended");
        got_ += static_cast<size_t>(count);
        continue;
      }
      got_ = 0;
      switch (stage_) {
        case Stage::kHeader: look_at_header(); break;
        case Stage::kSizes: make_room(place); break;
        case Stage::kBytes: stage_ = Stage::kHeader; return std::pair(header_.edge, std::move(tensor_));
        case Stage::kWords: throw Error(Status(static_cast<StatusCode>(std::clamp(header_.code, 1, 16)), words_));
      }
    }
  }

  const Descriptor socket;
  absl::Mutex send_mu;
  bool broken ABSL_GUARDED_BY(send_mu) = false;  // in the middle of a message

 private:
  enum class Stage { kHeader, kSizes, kBytes, kWords };

  size_t stage_bytes() const {
    switch (stage_) {
      case Stage::kHeader: return sizeof header_;
      case Stage::kSizes: return header_.dimensions * sizeof(int64_t);
      case Stage::kBytes: return header_.bytes;
      case Stage::kWords: return words_.size();
    }
    return 0;
  }
  char* stage_memory() {
    switch (stage_) {
      case Stage::kHeader: return reinterpret_cast<char*>(&header_);
      case Stage::kSizes: return reinterpret_cast<char*>(sizes_.data());
      case Stage::kBytes: return static_cast<char*>(tensor_.mutable_data_ptr());
      case Stage::kWords: return words_.data();
    }
    return nullptr;
  }

  void look_at_header() {
    const bool failed = header_.word == WireWord::kFailed;
    if ((!failed && header_.word != WireWord::kTensor) || header_.dimensions > kMostDimensions ||
        (failed && header_.bytes > kMostWords)) {
      throw internal("has sent what is no message");
    }
    if (failed) words_.resize(header_.bytes);
    stage_ = failed ? Stage::kWords : Stage::kSizes;
  }

  void make_room(const std::function<at::Tensor(int64_t edge)>& place) {
    const std::optional<DType> dtype = dtype_from_number(header_.code);
    const at::IntArrayRef sizes(sizes_.data(), header_.dimensions);
    uint64_t bytes = dtype ? static_cast<uint64_t>(bytes_per_element(*dtype)) : 0;
    for (const int64_t size : sizes) {
      if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) bytes = ~uint64_t{0};
    }
    if (!dtype || bytes != header_.bytes) throw internal("has sent a tensor of other sizes than it says");
    tensor_ = place(header_.edge);
    if (!tensor_.defined() || tensor_.sizes() != sizes || tensor_.scalar_type() != scalar_type_of(*dtype)) {
      try {
        tensor_ = at::empty(sizes, scalar_type_of(*dtype));
      } catch (const std::exception&) {
        throw resource_exhausted("has sent ", bytes, " bytes, for which there is no memory here");
      }
    }
    stage_ = Stage::kBytes;
  }

  Stage stage_ = Stage::kHeader;
  size_t got_ = 0;  // bytes of this stage
  Header header_;
  std::array<int64_t, kMostDimensions> sizes_{};
  at::Tensor tensor_;
  std::string words_;
};

WirePosts::WirePosts(std::vector<Descriptor> sockets, std::chrono::microseconds look_out)
    : look_out_(look_out),
      connections_(sockets.size()),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      ended_(sockets.size()) {
  auto listen_to = [&](const Descriptor& descriptor, int number) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = number}};
    if (::epoll_ctl(events_.number(), EPOLL_CTL_ADD, descriptor.number(), &event) == 0) return;
    throw internal("the connections of a group cannot be waited for: ", std::strerror(errno));
  };
  listen_to(bell_, -1);
  for (size_t rank = 0; rank < sockets.size(); ++rank) {
    if (!sockets[rank]) continue;
    connections_[rank] = std::make_unique<Connection>(std::move(sockets[rank]));
    listen_to(connections_[rank]->socket, static_cast<int>(rank));
  }
}

WirePosts::~WirePosts() = default;

bool WirePosts::has(int rank) const { return connections_[static_cast<size_t>(rank)] != nullptr; }

void WirePosts::check(int rank) const {
  if (!failure_.ok()) throw Error(failure_);
  if (!ended_[static_cast<size_t>(rank)].ok()) throw Error(ended_[static_cast<size_t>(rank)]);
}

void WirePosts::send(int to, int64_t edge, const at::Tensor& tensor, Clock::time_point deadline,
                     const std::function<void()>& look) {
  {
    absl::MutexLock lock(&mu_);
    check(to);
  }
  Connection& connection = *connections_[static_cast<size_t>(to)];
  const at::Tensor whole = tensor.cpu().contiguous();
  if (whole.dim() > static_cast<int64_t>(kMostDimensions)) {
    throw invalid_argument("a tensor of ", whole.dim(), " dimensions; at most ", kMostDimensions, " can be sent");
  }
  Header header{.word = WireWord::kTensor,
                .code = static_cast<int32_t>(dtype_of(whole.scalar_type())),
                .edge = edge,
                .bytes = whole.nbytes(),
                .dimensions = static_cast<uint64_t>(whole.dim())};
  std::array<iovec, 3> parts{iovec{&header, sizeof header},
                             iovec{const_cast<int64_t*>(whole.sizes().data()), whole.sizes().size() * sizeof(int64_t)},
                             iovec{const_cast<void*>(whole.const_data_ptr()), whole.nbytes()}};
  std::span<iovec> left(parts);

  absl::MutexLock lock(&connection.send_mu);
  if (connection.broken) {
    absl::MutexLock state(&mu_);
    check(to);
    throw unavailable("was not sent all of a message");
  }
  while (true) {
    while (!left.empty() && left.front().iov_len == 0) left = left.subspan(1);
    if (left.empty()) return;
    msghdr message{};
    message.msg_iov = left.data();
    message.msg_iovlen = left.size();
    ssize_t sent = ::sendmsg(connection.socket.number(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      for (iovec& part : left) {
        const size_t of_part = std::min(part.iov_len, static_cast<size_t>(sent));
        part.iov_base = static_cast<char*>(part.iov_base) + of_part;
        part.iov_len -= of_part;
        sent -= static_cast<ssize_t>(of_part);
      }
      connection.broken = std::any_of(left.begin(), left.end(), [](const iovec& part) { return part.iov_len > 0; });
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      read_now();  // its last words
      absl::MutexLock state(&mu_);
      check(to);
      throw unavailable("has ended");
    }
    if (Clock::now() >= deadline) throw deadline_exceeded("does not read what it is sent");
    // It may be waiting until this one reads, and so may others for whom it waits.
    read_now();
    {
      absl::MutexLock state(&mu_);
      check(to);
    }
    if (look) look();
    std::array<pollfd, 2> ends{pollfd{.fd = connection.socket.number(), .events = POLLOUT, .revents = 0},
                               pollfd{.fd = events_.number(), .events = POLLIN, .revents = 0}};
    ::poll(ends.data(), ends.size(), milliseconds_until(std::min(deadline, Clock::now() + kPause)));
  }
}

void WirePosts::expect(int from, int64_t edge, at::Tensor into) {
  absl::MutexLock lock(&mu_);
  expected_[Key(from, edge)] = std::move(into);
}

std::optional<at::Tensor> WirePosts::take(int from, int64_t edge, Clock::time_point until) {
  absl::MutexLock lock(&mu_);
  const uint64_t wakes = wakes_;
  while (true) {
    if (const auto found = inbox_.find(Key(from, edge)); found != inbox_.end()) {
      at::Tensor tensor = std::move(found->second);
      inbox_.erase(found);
      return tensor;
    }
    check(from);
    if (wakes_ != wakes || Clock::now() >= until) return std::nullopt;
    read(until);
  }
}

void WirePosts::read_now() {
  absl::MutexLock lock(&mu_);
  read(Clock::time_point::min());
}

void WirePosts::read(Clock::time_point until) {
  if (reading_) {
    if (const Clock::time_point now = Clock::now(); now < until) changed_.wait_for(mu_, absl::FromChrono(until - now));
    return;
  }
  reading_ = true;
  mu_.Unlock();
  std::vector<Arrived> arrived = arrivals(until);
  mu_.Lock();
  reading_ = false;
  for (Arrived& one : arrived) {
    if (one.ended.ok()) {
      inbox_[Key(one.from, one.edge)] = std::move(one.tensor);
    } else {
      ended_[static_cast<size_t>(one.from)] = std::move(one.ended);
    }
  }
  changed_.signal_all();
}

std::vector<WirePosts::Arrived> WirePosts::arrivals(Clock::time_point until) {
  const bool waits = until != Clock::time_point::min();
  const Clock::time_point looks = waits ? Clock::now() + look_out_ : until;
  std::array<epoll_event, 16> events{};
  std::vector<Arrived> arrived;
  while (arrived.empty()) {
    const Clock::time_point now = waits ? Clock::now() : until;
    const bool sleeps = waits && now >= looks && now < until;
    const int count = ::epoll_wait(events_.number(), events.data(), static_cast<int>(events.size()),
                                   sleeps ? milliseconds_until(until) : 0);
    for (int i = 0; i < count; ++i) {
      const int from = events[static_cast<size_t>(i)].data.fd;
      if (from < 0) {
        uint64_t rung = 0;
        (void)!::read(bell_.number(), &rung, sizeof rung);
        return arrived;
      }
      Connection& connection = *connections_[static_cast<size_t>(from)];
      const auto place = [&](int64_t edge) {
        absl::MutexLock lock(&mu_);
        const auto known = expected_.extract(Key(from, edge));
        return known.empty() ? at::Tensor() : std::move(known.mapped());
      };
      try {
        while (auto message = connection.next(place)) {
          arrived.push_back({.from = from, .edge = message->first, .tensor = std::move(message->second)});
        }
      } catch (...) {
        arrived.push_back({.from = from, .ended = status_of(std::current_exception())});
        ::epoll_ctl(events_.number(), EPOLL_CTL_DEL, connection.socket.number(), nullptr);
      }
    }
    if (!waits || (count <= 0 && Clock::now() >= until)) break;
  }
  return arrived;
}

void WirePosts::wake() {
  absl::MutexLock lock(&mu_);
  ++wakes_;
  const uint64_t once = 1;
  if (reading_) (void)!::write(bell_.number(), &once, sizeof once);
  changed_.signal_all();
}

void WirePosts::hear(const Status& why) {
  {
    absl::MutexLock lock(&mu_);
    if (failure_.ok()) failure_ = why;
    expected_.clear();
    inbox_.clear();
  }
  wake();
}

void WirePosts::fail(const Status& why) {
  hear(why);
  const std::string words = why.message().substr(0, kMostWords);
  Header header{.word = WireWord::kFailed, .code = static_cast<int32_t>(why.code()), .bytes = words.size()};
  std::array<iovec, 2> parts{iovec{&header, sizeof header}, iovec{const_cast<char*>(words.data()), words.size()}};
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  for (const auto& connection : connections_) {
    if (!connection || !connection->send_mu.TryLock()) continue;
    if (!connection->broken) {
      (void)!::sendmsg(connection->socket.number(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
      connection->broken = true;
    }
    connection->send_mu.Unlock();
  }
}

}  // namespace muster
