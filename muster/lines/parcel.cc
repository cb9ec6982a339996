#include "muster/lines/parcel.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "muster/base/blocking.h"
#include "muster/base/elastic_pool.h"
#include "muster/lines/tcp_socket.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kParcelWord = 0x6d7573746572'50;
constexpr size_t kMostOfAll = 4096;
constexpr int kMostWriters = 256;     // at a time; one whose receiver has stopped is one for as long as kStalled
constexpr size_t kMostPieces = 1024;  // of one sendmsg(): IOV_MAX

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

std::atomic<size_t>& Line::count() {
  static std::atomic<size_t> count = 0;
  return count;
}

bool Line::may_have_another() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  return count().load(std::memory_order_relaxed) < std::min<size_t>(limit.rlim_cur / 4, kMostOfAll);
}

void Line::break_off() {
  if (!broken_.exchange(true, std::memory_order_acq_rel)) ::shutdown(socket_.number(), SHUT_RDWR);
}

bool Line::gone() {
  pollfd end{.fd = socket_.number(), .events = POLLRDHUP, .revents = 0};
  if (::poll(&end, 1, 0) == 1) break_off();  // whatever it has left to be read
  return broken();
}

std::shared_ptr<Parcel> LineOut::take() {
  absl::MutexLock lock(&mu_);
  while (!broken()) {
    uint64_t confirmed = 0;
    const ssize_t count = ::recv(socket_.number(), &confirmed, sizeof confirmed, MSG_DONTWAIT);
    if (count < 0 && would_block()) break;
    if (count < 0 && errno == EINTR) continue;
    // It was sent in one piece, eight bytes on a line that carries nothing else that way.
    if (count != sizeof confirmed || confirmed != confirmed_ + 1 || confirmed > taken_) {
      break_off();
    } else {
      confirmed_ = confirmed;
    }
  }
  // Whoever was to receive it has given up its call.
  if (confirmed_ != taken_ && Clock::now() - moved_.load(std::memory_order_relaxed) > kStalled) break_off();
  if (broken() || confirmed_ != taken_) return nullptr;
  moved_.store(Clock::now(), std::memory_order_relaxed);
  return std::make_shared<Parcel>(shared_from_this(), ++taken_);
}

void LineOut::break_parcel(uint64_t number) {
  absl::MutexLock lock(&mu_);
  if (taken_ == number) break_off();
}

Parcel::~Parcel() {
  if (left_.empty() || first_ < left_.size()) break_off();
}

void Parcel::fill(std::vector<at::Tensor> tensors) {
  tensors_ = std::move(tensors);
  header_[0] = kParcelWord;
  header_[1] = number_;
  left_.push_back({header_, sizeof header_});
  for (const at::Tensor& tensor : tensors_) {
    header_[2] += tensor.nbytes();
    left_.push_back({const_cast<void*>(tensor.const_data_ptr()), tensor.nbytes()});
  }
}

bool Parcel::send_some() {
  while (!line_->broken()) {
    while (first_ < left_.size() && left_[first_].iov_len == 0) ++first_;
    if (first_ == left_.size()) break;
    msghdr message{};
    message.msg_iov = left_.data() + first_;
    message.msg_iovlen = std::min(left_.size() - first_, kMostPieces);
    ssize_t sent = ::sendmsg(line_->socket_.number(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && would_block()) return false;
    if (sent < 0 && errno != EINTR) line_->break_off();
    if (sent > 0) line_->moved_.store(Clock::now(), std::memory_order_relaxed);
    for (size_t i = first_; sent > 0; ++i) {
      const size_t of_piece = std::min(left_[i].iov_len, static_cast<size_t>(sent));
      left_[i].iov_base = static_cast<char*>(left_[i].iov_base) + of_piece;
      left_[i].iov_len -= of_piece;
      sent -= static_cast<ssize_t>(of_piece);
    }
  }
  tensors_.clear();  // whoever writes to them need not copy them any more
  kept_.reset();
  return true;
}

bool Parcel::send_until(Clock::time_point until) {
  while (!send_some()) {
    const Clock::time_point now = Clock::now();
    const Clock::time_point stalled = line_->moved_.load(std::memory_order_relaxed) + kStalled;
    if (now >= stalled) line_->break_off();
    if (now >= until) return line_->broken();
    const Waiting waiting;
    becomes(line_->socket_, POLLOUT, std::min(until, stalled));
  }
  return true;
}

void send_in_background(std::shared_ptr<Parcel> parcel) {
  // Never destroyed, as nobody waits for what it does.
  static ElasticPool& pool = *new ElasticPool("line writers", kMostWriters);
  if (parcel->send_some()) return;
  pool.submit([parcel = std::move(parcel)] {
    while (!parcel->send_until(Clock::now() + kStalled)) {
    }
  });
}

bool LineIn::read(void* into, size_t bytes, Clock::time_point until) {
  auto* to = static_cast<char*>(into);
  while (bytes > 0 && !broken()) {
    const ssize_t count = ::recv(socket_.number(), to, bytes, MSG_DONTWAIT);
    if (count > 0) {
      to += count;
      bytes -= static_cast<size_t>(count);
    } else if (count == 0 || (!would_block() && errno != EINTR)) {
      return false;
    } else if (would_block()) {
      const Waiting waiting;
      if (!becomes(socket_, POLLIN, std::min(until, Clock::now() + kStalled))) return false;
    }
  }
  return bytes == 0;
}

bool LineIn::receive(uint64_t number, std::span<const NearConnection::Place> places, Clock::time_point until,
                     const Cancellation* cancellation) {
  about_to_block();
  Cancellation::Registration registration;
  if (cancellation != nullptr) registration = cancellation->on_cancel([this](const Status&) { break_off(); });
  bool fits = !in_use_.exchange(true, std::memory_order_acquire);
  uint64_t header[3] = {}, bytes = 0;
  for (const NearConnection::Place& place : places) bytes += place.bytes;
  fits = fits && read(header, sizeof header, until) && header[0] == kParcelWord && header[1] == number &&
         header[2] == bytes;
  for (size_t i = 0; fits && i < places.size(); ++i) fits = read(places[i].here, places[i].bytes, until);
  // Before it is confirmed: then the next one may be here at once.
  if (fits) in_use_.store(false, std::memory_order_release);
  fits = fits && ::send(socket_.number(), &number, sizeof number, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof number;
  if (!fits) break_off();
  return fits;
}

void LinesOut::drop_broken() {
  std::erase_if(lines_, [](const std::shared_ptr<LineOut>& line) { return line->broken(); });
}

std::shared_ptr<Parcel> LinesOut::take() {
  absl::MutexLock lock(&mu_);
  for (const std::shared_ptr<LineOut>& line : lines_) {
    if (std::shared_ptr<Parcel> parcel = line->take()) return parcel;
  }
  drop_broken();
  return nullptr;
}

void LinesOut::add(std::shared_ptr<LineOut> line) {
  absl::MutexLock lock(&mu_);
  drop_broken();
  lines_.push_back(std::move(line));
}

size_t LinesOut::size() {
  absl::MutexLock lock(&mu_);
  drop_broken();
  return lines_.size();
}

void LinesOut::break_all() {
  absl::MutexLock lock(&mu_);
  for (const std::shared_ptr<LineOut>& line : lines_) line->break_off();
}

size_t LinesOut::look() {
  absl::MutexLock lock(&mu_);
  std::erase_if(lines_, [](const std::shared_ptr<LineOut>& line) { return line->gone(); });
  return lines_.size();
}

}  // namespace muster
