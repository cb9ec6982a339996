#include "muster/lines/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

#include "muster/near/near_socket.h"

namespace muster {

TcpDoor listen_at_any_port(bool this_machine_only) {
  for (const int family : {AF_INET6, AF_INET}) {  // the first takes both, where there is one
    if (family == AF_INET6 && this_machine_only) continue;
    Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) continue;
    const int no = 0;
    sockaddr_storage address{};
    socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    address.ss_family = static_cast<sa_family_t>(family);
    if (this_machine_only) reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (family == AF_INET6 && ::setsockopt(socket.number(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) != 0) continue;
    if (::bind(socket.number(), reinterpret_cast<sockaddr*>(&address), length) != 0) continue;
    if (::listen(socket.number(), SOMAXCONN) != 0) continue;
    if (::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&address), &length) != 0) continue;
    const auto port = family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(address).sin_port;
    return {.listener = std::move(socket), .port = ntohs(port), .ip4_only = family == AF_INET};
  }
  return {};
}

Descriptor accept_at(const TcpDoor& door) {
  return Descriptor(::accept4(door.listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

std::string host_of_address(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return host;
}

Descriptor begin_to_connect(const std::string& host, int port, bool ip4_only) {
  addrinfo hints{};
  hints.ai_family = ip4_only ? AF_INET : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return Descriptor();
  Descriptor socket;
  for (const addrinfo* place = found; place != nullptr; place = place->ai_next) {
    socket = Descriptor(::socket(place->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket && (::connect(socket.number(), place->ai_addr, place->ai_addrlen) == 0 || errno == EINPROGRESS)) break;
    socket = Descriptor();
  }
  ::freeaddrinfo(found);
  return socket;
}

void send_at_once(const Descriptor& socket) {
  const int yes = 1;
  ::setsockopt(socket.number(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

bool becomes(const Descriptor& socket, short event, std::chrono::steady_clock::time_point until) {
  pollfd end{.fd = socket.number(), .events = event, .revents = 0};
  int count = 0;
  do {
    count = ::poll(&end, 1, milliseconds_until(until));
  } while (count < 0 && errno == EINTR);
  return count == 1 && (end.revents & event) != 0;
}

}  // namespace muster
