#include "muster/near/near_socket.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace muster {
namespace {

constexpr int kBacklog = 128;

struct SocketName {
  explicit SocketName(const std::string& name) {
    address.sun_family = AF_UNIX;
    fits = !name.empty() && name.size() < sizeof address.sun_path;
    if (!fits) return;
    std::memcpy(address.sun_path + 1, name.data(), name.size());  // after a zero: no file
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t size = 0;
  bool fits = false;
};

Descriptor new_socket() {
  Descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return made && tell_senders(made) ? std::move(made) : Descriptor();
}

}  // namespace

Descriptor listen_at(const std::string& name) {
  const SocketName address(name);
  Descriptor made = new_socket();
  const bool listens = made && address.fits && ::bind(made.number(), address.get(), address.size) == 0 &&
                       ::listen(made.number(), kBacklog) == 0;
  return listens ? std::move(made) : Descriptor();
}

Descriptor connect_to(const std::string& name) {
  const SocketName address(name);
  Descriptor made = new_socket();
  const bool connected = made && address.fits && ::connect(made.number(), address.get(), address.size) == 0;
  return connected ? std::move(made) : Descriptor();
}

Descriptor accept_from(const Descriptor& listener) {
  Descriptor made(::accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  return made && tell_senders(made) ? std::move(made) : Descriptor();
}

int milliseconds_until(std::chrono::steady_clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

}  // namespace muster
