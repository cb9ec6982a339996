#include "muster/near/near_post.h"

#include <ATen/Functions.h>
#include <absl/cleanup/cleanup.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "muster/graph/dtype.h"
#include "muster/near/near_socket.h"
#include "muster/runtime/memory/tensors.h"

namespace muster {

enum class PostWord : uint32_t { kHello = 0x6d7051, kWelcome, kTensor, kFetch, kFailed };

namespace {

constexpr size_t kInlined = 4 << 10;    // bytes that go with a letter; more is put into memory
constexpr size_t kMostWords = 2 << 10;  // of a failure
constexpr size_t kMostDimensions = 8;
constexpr auto kPause = std::chrono::milliseconds(100);  // between two looks for room in the socket

// What a process says to be let in; the descriptor of its memory comes with it.
struct Greeting {
  PostWord word{};
  int32_t rank = 0;
  uint64_t token = 0;
};

bool greet(const Descriptor& socket, const Greeting& greeting, const SharedMemory& memory) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  iovec place{const_cast<Greeting*>(&greeting), sizeof greeting};
  msghdr header{};
  header.msg_iov = &place;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  cmsghdr* part = CMSG_FIRSTHDR(&header);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = memory.descriptor().number();
  std::memcpy(CMSG_DATA(part), &number, sizeof number);
  return ::sendmsg(socket.number(), &header, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof greeting;
}

// From that process and no other; its memory.
std::optional<SharedMemory> receive_greeting(const Descriptor& socket, const NearProcess& from, Greeting& greeting) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(ucred))];
  iovec place{&greeting, sizeof greeting};
  msghdr header{};
  header.msg_iov = &place;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket.number(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0) return std::nullopt;
  Enclosed enclosed = enclosed_in(header);
  const bool whole = got == sizeof greeting && (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  if (!whole || enclosed.sender != from.id()) return std::nullopt;
  return SharedMemory::open(std::move(enclosed.descriptor));
}

std::span<const char> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

struct NearPost::Letter {
  PostWord word{};
  int32_t code = 0;  // kFailed: of the status. kTensor: the type
  int64_t edge = 0;
  uint64_t place = 0;  // in memory
  uint64_t bytes = 0;  // of the tensor
  uint32_t inlined = 0;
  uint32_t dimensions = 0;
  std::array<int64_t, kMostDimensions> sizes{};
};

NearPost::NearPost(Descriptor socket, NearProcess other, SharedMemory ours, SharedMemory theirs)
    : socket_(std::move(socket)),
      bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      other_(std::move(other)),
      trays_(std::make_shared<NearTrays>(std::move(ours), std::move(theirs))),
      buffer_(sizeof(Letter) + std::max(kInlined, kMostWords)) {}

NearPost::~NearPost() = default;

void NearPost::open(Fetch fetch, std::chrono::microseconds look_out) {
  fetch_ = std::move(fetch);
  look_out_ = look_out;
}

void NearPost::begin_to_send(Clock::time_point deadline, const std::function<void()>& look) {
  while (true) {
    {
      absl::MutexLock lock(&mu_);
      if (sending_) sent_.wait_for(mu_, absl::FromChrono(std::min<Clock::duration>(kPause, deadline - Clock::now())));
      if (!sending_) {
        sending_ = true;
        return;
      }
    }
    if (Clock::now() >= deadline) throw deadline_exceeded("does not read what it is sent");
    if (look) look();
  }
}

void NearPost::end_sending() {
  absl::MutexLock lock(&mu_);
  sending_ = false;
  sent_.signal();
}

bool NearPost::send(int64_t edge, const at::Tensor& tensor, Clock::time_point deadline,
                    const std::function<void()>& look) {
  Letter letter{.word = PostWord::kTensor,
                .code = static_cast<int32_t>(dtype_of(tensor.scalar_type())),
                .edge = edge,
                .bytes = tensor.nbytes(),
                .dimensions = static_cast<uint32_t>(tensor.dim())};
  const auto look_here = [&] {
    {
      absl::MutexLock lock(&mu_);
      if (!ended_.ok()) throw Error(ended_);
    }
    if (look) look();
  };
  begin_to_send(deadline, look_here);
  const absl::Cleanup sent = [&] { end_sending(); };
  bool here = tensor.is_cpu() && letter.bytes <= kMost && letter.dimensions <= kMostDimensions;
  at::Tensor whole;
  if (here) {
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), letter.sizes.begin());
    whole = tensor.contiguous();
    if (letter.bytes <= kInlined) {
      letter.inlined = static_cast<uint32_t>(letter.bytes);
    } else if (const std::optional<uint64_t> place = trays_->put(bytes_of(whole))) {
      letter.place = *place;
    } else {
      here = false;
    }
  }
  if (!here) letter.word = PostWord::kFetch;
  write(letter, letter.inlined > 0 ? bytes_of(whole) : std::span<const char>(), deadline, look_here);
  return here;
}

void NearPost::write(const Letter& letter, std::span<const char> inlined, Clock::time_point deadline,
                     const std::function<void()>& look) {
  std::array<iovec, 2> parts{iovec{const_cast<Letter*>(&letter), sizeof letter},
                             iovec{const_cast<char*>(inlined.data()), inlined.size()}};
  msghdr header{};
  header.msg_iov = parts.data();
  header.msg_iovlen = inlined.empty() ? 1 : 2;
  while (::sendmsg(socket_.number(), &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) throw unavailable("has ended");
    if (Clock::now() >= deadline) throw deadline_exceeded("does not read what it is sent");
    // It may be waiting until this one reads, too.
    {
      absl::MutexLock lock(&mu_);
      read(Clock::now());
    }
    if (look) look();
    pollfd room{.fd = socket_.number(), .events = POLLOUT, .revents = 0};
    ::poll(&room, 1, milliseconds_until(std::min(deadline, Clock::now() + kPause)));
  }
}

std::optional<at::Tensor> NearPost::take(int64_t edge, Clock::time_point until) {
  absl::MutexLock lock(&mu_);
  const uint64_t wakes = wakes_;
  while (true) {
    if (const auto found = inbox_.find(edge); found != inbox_.end()) {
      at::Tensor tensor = std::move(found->second);
      inbox_.erase(found);
      return tensor;
    }
    // What it has said it has is on another way, and may be the last thing that it had to give.
    if (!ended_.ok() && !fetched_.contains(edge)) throw Error(ended_);
    if (wakes_ != wakes || Clock::now() >= until) return std::nullopt;
    read(until);
  }
}

void NearPost::read(Clock::time_point until) {
  if (reading_ || !ended_.ok()) {
    if (const auto left = until - Clock::now(); left.count() > 0) changed_.wait_for(mu_, absl::FromChrono(left));
    return;
  }
  reading_ = true;
  mu_.Unlock();
  std::vector<Arrived> arrived;
  Status ended;
  try {
    // What came with it may be what others wait for.
    for (auto one = next(until); one; one = next(Clock::time_point::min())) arrived.push_back(*std::move(one));
  } catch (const Error& error) {
    ended = error.status();
  }
  mu_.Lock();
  reading_ = false;
  std::vector<int64_t> elsewhere;
  for (Arrived& one : arrived) {
    if (one.tensor.defined()) {
      inbox_[one.edge] = std::move(one.tensor);
    } else {
      elsewhere.push_back(one.edge);
      fetched_.insert(one.edge);
    }
  }
  if (ended_.ok()) ended_ = ended;
  changed_.signal_all();
  if (elsewhere.empty()) return;
  mu_.Unlock();
  for (const int64_t edge : elsewhere) fetch_(edge);
  mu_.Lock();
}

std::optional<NearPost::Arrived> NearPost::next(Clock::time_point until) {
  const bool waits = until != Clock::time_point::min();
  const Clock::time_point looks = waits && look_out_.count() > 0 ? Clock::now() + look_out_ : until;
  while (true) {
    const ssize_t got = ::recv(socket_.number(), buffer_.data(), buffer_.size(), MSG_DONTWAIT | MSG_TRUNC);
    if (got > static_cast<ssize_t>(buffer_.size())) throw internal("has sent what is no letter");
    if (got > 0) return opened({buffer_.data(), static_cast<size_t>(got)});
    if (got == 0) read_all_ = true;  // of one that has left letters unread, the kernel reports an error first
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) throw unavailable("has ended");
    if (!waits) return std::nullopt;
    const Clock::time_point now = Clock::now();
    if (look_out_.count() > 0 && now < looks) continue;
    if (now >= until) return std::nullopt;
    std::array<pollfd, 2> ends{pollfd{.fd = socket_.number(), .events = POLLIN, .revents = 0},
                               pollfd{.fd = bell_.number(), .events = POLLIN, .revents = 0}};
    ::poll(ends.data(), ends.size(), milliseconds_until(until));
    if ((ends[1].revents & POLLIN) == 0) continue;
    uint64_t rung = 0;
    (void)!::read(bell_.number(), &rung, sizeof rung);
    return std::nullopt;
  }
}

NearPost::Arrived NearPost::opened(std::span<const char> message) {
  Letter letter;
  if (message.size() < sizeof letter) throw internal("has sent what is no letter");
  std::memcpy(&letter, message.data(), sizeof letter);
  const std::span<const char> inlined = message.subspan(sizeof letter);
  switch (letter.word) {
    case PostWord::kFetch: return {letter.edge, {}};
    case PostWord::kTensor: return {letter.edge, tensor_of(letter, inlined)};
    case PostWord::kFailed:
      throw Error(Status(static_cast<StatusCode>(std::clamp(letter.code, 1, 16)), {inlined.data(), inlined.size()}));
    default: throw internal("has sent what is no letter");
  }
}

at::Tensor NearPost::tensor_of(const Letter& letter, std::span<const char> inlined) {
  const std::optional<DType> dtype = dtype_from_number(letter.code);
  if (!dtype || letter.dimensions > kMostDimensions || letter.bytes > kMost || letter.inlined != inlined.size() ||
      (letter.inlined > 0 && letter.inlined != letter.bytes)) {
    throw internal("has sent what is no tensor");
  }
  const at::ScalarType type = scalar_type_of(*dtype);
  const at::IntArrayRef sizes(letter.sizes.data(), letter.dimensions);
  auto bytes = static_cast<uint64_t>(bytes_per_element(*dtype));
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes)) bytes = ~uint64_t{0};
  }
  if (bytes != letter.bytes) throw internal("has sent a tensor of other sizes than it says");
  if (letter.bytes == letter.inlined) {
    at::Tensor tensor = at::empty(sizes, type);
    if (bytes > 0) std::memcpy(tensor.mutable_data_ptr(), inlined.data(), bytes);
    return tensor;
  }
  const char* place = trays_->find(letter.place, bytes);
  if (place == nullptr) throw internal("has sent the number of no place in memory");
  auto done = [trays = trays_, number = letter.place](void*) { trays->done_with(number); };
  return at::from_blob(const_cast<char*>(place), sizes, std::move(done), type);
}

void NearPost::check() {
  absl::MutexLock lock(&mu_);
  while (reading_) {  // that thread may have taken the last words off the socket, or wait there for long
    ring();
    changed_.wait_for(mu_, absl::Milliseconds(1));
  }
  if (ended_.ok()) read(Clock::time_point::min());
  if (!ended_.ok() && !read_all_) throw Error(ended_);
}

void NearPost::deliver(int64_t edge, const Status& status, at::Tensor tensor) {
  {
    absl::MutexLock lock(&mu_);
    if (status.ok()) {
      inbox_[edge] = std::move(tensor);
      fetched_.erase(edge);
    } else {
      if (ended_.ok()) ended_ = status;
      fetched_.clear();
    }
  }
  wake();
}

void NearPost::wake() {
  absl::MutexLock lock(&mu_);
  ring();
}

void NearPost::ring() {
  ++wakes_;
  const uint64_t once = 1;
  if (reading_) (void)!::write(bell_.number(), &once, sizeof once);
  changed_.signal_all();
}

void NearPost::fail(const Status& why) {
  deliver(0, why, {});  // whoever is sending and has no room gives up
  const std::string words = why.message().substr(0, kMostWords);
  try {
    begin_to_send(Clock::now() + 2 * kPause, {});
    const absl::Cleanup sent = [&] { end_sending(); };
    write({.word = PostWord::kFailed, .code = static_cast<int32_t>(why.code())}, words, Clock::now(), {});
  } catch (const Error&) {  // then it hears of it otherwise
  }
}

std::optional<PostCaller> call_at(const std::string& name, uint64_t token, int rank) {
  Descriptor socket = connect_to(name);
  if (!socket) return std::nullopt;
  std::optional<NearProcess> process = NearProcess::behind(socket);
  std::optional<SharedMemory> memory = SharedMemory::make();
  if (!process || !memory) return std::nullopt;
  if (!greet(socket, {.word = PostWord::kHello, .rank = rank, .token = token}, *memory)) return std::nullopt;
  return PostCaller{std::move(socket), *std::move(process), *std::move(memory)};
}

std::vector<std::pair<int, std::unique_ptr<NearPost>>> answer_callers(const Descriptor& listener, uint64_t token) {
  std::vector<std::pair<int, std::unique_ptr<NearPost>>> posts;
  while (Descriptor socket = accept_from(listener)) {
    std::optional<NearProcess> process = NearProcess::behind(socket);
    if (!process) continue;
    Greeting hello;
    std::optional<SharedMemory> theirs = receive_greeting(socket, *process, hello);
    if (!theirs || hello.word != PostWord::kHello || hello.token != token) continue;
    std::optional<SharedMemory> ours = SharedMemory::make();
    if (!ours || !greet(socket, {.word = PostWord::kWelcome, .token = token}, *ours)) continue;
    posts.emplace_back(hello.rank, std::make_unique<NearPost>(std::move(socket), *std::move(process), *std::move(ours),
                                                              *std::move(theirs)));
  }
  return posts;
}

std::unique_ptr<NearPost> finish(PostCaller caller, uint64_t token) {
  Greeting welcome;
  std::optional<SharedMemory> theirs = receive_greeting(caller.socket, caller.process, welcome);
  if (!theirs || welcome.word != PostWord::kWelcome || welcome.token != token) return nullptr;
  return std::make_unique<NearPost>(std::move(caller.socket), std::move(caller.process), std::move(caller.memory),
                                    *std::move(theirs));
}

}  // namespace muster
