#include "muster/near/near_process.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace muster {

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

std::optional<NearProcess> NearProcess::behind(const Descriptor& socket) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket.number(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return std::nullopt;
  if (who.pid <= 0 || who.uid != ::geteuid()) return std::nullopt;  // 0: this name space has no number for it
  Descriptor held(static_cast<int>(::syscall(SYS_pidfd_open, who.pid, 0)));
  if (!held) return std::nullopt;
  return NearProcess(who.pid, std::move(held));
}

bool NearProcess::alive() const {
  pollfd end{.fd = held_.number(), .events = POLLIN, .revents = 0};
  return ::poll(&end, 1, 0) == 0;
}

Enclosed enclosed_in(msghdr& received) {
  Enclosed enclosed;
  for (cmsghdr* part = CMSG_FIRSTHDR(&received); part != nullptr; part = CMSG_NXTHDR(&received, part)) {
    if (part->cmsg_level != SOL_SOCKET) continue;
    if (part->cmsg_type == SCM_RIGHTS) {
      for (size_t at = CMSG_LEN(0); at + sizeof(int) <= part->cmsg_len; at += sizeof(int)) {
        int sent = -1;
        std::memcpy(&sent, reinterpret_cast<char*>(part) + at, sizeof sent);
        enclosed.descriptor = Descriptor(sent);  // closes the one before, should there be several
      }
    } else if (part->cmsg_type == SCM_CREDENTIALS) {
      ucred who{};
      std::memcpy(&who, CMSG_DATA(part), sizeof who);
      enclosed.sender = who.pid;
    }
  }
  return enclosed;
}

bool send_message(const Descriptor& socket, std::span<const char> message) {
  const ssize_t sent = ::send(socket.number(), message.data(), message.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(message.size());
}

bool tell_senders(const Descriptor& socket) {
  const int on = 1;
  return ::setsockopt(socket.number(), SOL_SOCKET, SO_PASSCRED, &on, sizeof on) == 0;
}

Received receive_message(const Descriptor& socket, std::span<char> into, NearMessage& message) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(ucred))];
  iovec place{into.data(), into.size()};
  msghdr header{};
  header.msg_iov = &place;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(socket.number(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return Received::kNothing;
  if (got < 0) return Received::kEnd;
  // Nobody honest sends descriptors along.
  message = {.bytes = static_cast<size_t>(got), .sender = enclosed_in(header).sender};
  return got == 0 || (header.msg_flags & MSG_TRUNC) != 0 ? Received::kEnd : Received::kMessage;
}

}  // namespace muster
