#include "muster/lines/tcp_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "muster/near/near_socket.h"

namespace muster {

namespace {

constexpr int kSilence = 20, kProbe = 5, kProbes = 3;  // seconds, and how often a silent peer is asked

// Where to listen, or to connect to. Null: there is no such host.
using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;
Addresses find_host(const std::string& host, int port, int family, int flags) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const char* name = host.empty() ? nullptr : host.c_str();
  if (::getaddrinfo(name, std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  return {found, &::freeaddrinfo};
}

Descriptor socket_for(const addrinfo& place) {
  return Descriptor(::socket(place.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int port_of(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

TcpDoor listen_at_any_port(const std::string& host) {
  // At all addresses, one of IPv6 takes both kinds. A name may stand for one of each kind: then who connects is told.
  const bool all = host.empty() || host == "::";
  for (const int family : {all ? AF_INET6 : AF_INET, all ? AF_INET : AF_INET6}) {
    const Addresses places = find_host(host, 0, family, AI_PASSIVE);
    if (!places) continue;
    Descriptor socket = socket_for(*places);
    const int no = 0;
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    if (!socket) continue;
    if (family == AF_INET6 && ::setsockopt(socket.number(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) != 0) continue;
    if (::bind(socket.number(), places->ai_addr, places->ai_addrlen) != 0) continue;
    if (::listen(socket.number(), SOMAXCONN) != 0) continue;
    if (::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&address), &length) != 0) continue;
    return {.listener = std::move(socket), .port = port_of(address), .ip4_only = family == AF_INET};
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
  const Addresses places = find_host(host, port, ip4_only ? AF_INET : AF_UNSPEC, 0);
  for (const addrinfo* place = places.get(); place != nullptr; place = place->ai_next) {
    Descriptor socket = socket_for(*place);
    if (!socket) continue;
    if (::connect(socket.number(), place->ai_addr, place->ai_addrlen) == 0 || errno == EINPROGRESS) return socket;
  }
  return Descriptor();
}

void make_ready(const Descriptor& socket) {
  const auto set = [&](int level, int option, int value) {
    ::setsockopt(socket.number(), level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kSilence);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbe);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, (kSilence + kProbe * kProbes) * 1000);
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
