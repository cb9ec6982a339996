#include "muster/collective/far_ranks.h"

#include <ATen/Functions.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>

#include "muster/base/log.h"
#include "muster/collective/rows_of_all.h"
#include "muster/near/near_socket.h"
#include "muster/runtime/run_options.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kReachedWithin = std::chrono::seconds(2);

// What a rank shows of itself, and what is said at its port.
struct Door {
  uint64_t words[2] = {};  // known to those who were told over the group
  int64_t port = 0;        // 0: none
  int64_t family = 0;      // AF_INET: that alone
};
struct Knock {
  uint64_t words[2] = {};
  int64_t rank = 0;
};

Descriptor listen(GroupSockets who, Door& door) {
  for (const int family : {AF_INET6, AF_INET}) {  // the first takes both, where there is one
    if (family == AF_INET6 && who == GroupSockets::kOfThisMachine) continue;
    Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) continue;
    const int no = 0;
    sockaddr_storage address{};
    socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    address.ss_family = static_cast<sa_family_t>(family);
    if (who == GroupSockets::kOfThisMachine) {
      reinterpret_cast<sockaddr_in&>(address).sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    if (family == AF_INET6 && ::setsockopt(socket.number(), IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) != 0) continue;
    if (::bind(socket.number(), reinterpret_cast<sockaddr*>(&address), length) != 0) continue;
    if (::listen(socket.number(), SOMAXCONN) != 0) continue;
    if (::getsockname(socket.number(), reinterpret_cast<sockaddr*>(&address), &length) != 0) continue;
    door.family = family == AF_INET ? AF_INET : AF_UNSPEC;
    door.port = ntohs(family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                         : reinterpret_cast<sockaddr_in&>(address).sin_port);
    return socket;
  }
  return Descriptor();
}

std::string host_of(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return host;
}

// Begins to connect. Without a number: there is no such host.
Descriptor call(const std::string& host, const Door& door) {
  addrinfo hints{};
  hints.ai_family = door.family == AF_INET ? AF_INET : AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(door.port).c_str(), &hints, &found) != 0) return Descriptor();
  Descriptor socket;
  for (const addrinfo* place = found; place != nullptr; place = place->ai_next) {
    socket = Descriptor(::socket(place->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket && (::connect(socket.number(), place->ai_addr, place->ai_addrlen) == 0 || errno == EINPROGRESS)) break;
    socket = Descriptor();
  }
  ::freeaddrinfo(found);
  return socket;
}

bool becomes(const Descriptor& socket, short event, Clock::time_point until) {
  pollfd end{.fd = socket.number(), .events = event, .revents = 0};
  return ::poll(&end, 1, milliseconds_until(until)) == 1 && (end.revents & event) != 0;
}

bool write_all(const Descriptor& socket, const Knock& knock) {
  return ::send(socket.number(), &knock, sizeof knock, MSG_NOSIGNAL) == sizeof knock;
}

// Who has knocked, if it knows the words.
std::optional<int> who_knocks(const Descriptor& socket, const Door& door, Clock::time_point until) {
  Knock knock;
  size_t got = 0;
  while (got < sizeof knock) {
    if (!becomes(socket, POLLIN, until)) return std::nullopt;
    const ssize_t count = ::recv(socket.number(), reinterpret_cast<char*>(&knock) + got, sizeof knock - got, 0);
    if (count <= 0) return std::nullopt;
    got += static_cast<size_t>(count);
  }
  if (std::memcmp(knock.words, door.words, sizeof door.words) != 0) return std::nullopt;
  return static_cast<int>(knock.rank);
}

void make_ready(const Descriptor& socket) {
  const int yes = 1;
  ::setsockopt(socket.number(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

}  // namespace

std::vector<Descriptor> meet_far_ranks(Collectives& group, const std::vector<std::string>& addresses,
                                       const std::vector<bool>& wanted, GroupSockets who) {
  const int size = group.size(), here = group.rank();
  Door own{.words = {random_id(), random_id()}};
  const Descriptor listener = listen(who, own);
  at::Tensor row = at::empty({static_cast<int64_t>(sizeof own)}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), &own, sizeof own);
  const at::Tensor rows = rows_of_all(group, row, "ports");

  // Each calls those before it, all at once.
  std::vector<Descriptor> sockets(size);
  std::vector<Door> doors(size);
  for (int rank = 0; rank < size; ++rank) {
    std::memcpy(&doors[rank], rows[rank].contiguous().const_data_ptr(), sizeof(Door));
    if (rank < here && wanted[rank] && doors[rank].port != 0) {
      sockets[rank] = call(host_of(addresses[rank]), doors[rank]);
    }
  }
  const Clock::time_point until = Clock::now() + kReachedWithin;
  for (int rank = 0; rank < here; ++rank) {
    if (!sockets[rank]) continue;
    Knock knock{.rank = here};
    std::memcpy(knock.words, doors[rank].words, sizeof knock.words);
    make_ready(sockets[rank]);
    if (!becomes(sockets[rank], POLLOUT, until) || !write_all(sockets[rank], knock)) sockets[rank] = Descriptor();
  }
  const auto row_of = [&] {
    at::Tensor have = at::zeros({size}, at::kByte);
    for (int rank = 0; rank < size; ++rank) have[rank] = sockets[rank] ? 1 : 0;
    return have;
  };
  const at::Tensor knocked = rows_of_all(group, row_of(), "who has knocked");
  int expected = 0;
  for (int rank = here + 1; rank < size; ++rank) expected += knocked[rank][here].item<uint8_t>();
  const Clock::time_point heard = Clock::now() + kReachedWithin;
  while (expected > 0 && becomes(listener, POLLIN, heard)) {
    Descriptor socket(::accept4(listener.number(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) continue;
    const std::optional<int> rank = who_knocks(socket, own, heard);
    if (!rank || *rank <= here || *rank >= size || sockets[*rank]) continue;
    make_ready(socket);
    sockets[*rank] = std::move(socket);
    --expected;
  }

  // Both ends say whether they have it.
  const at::Tensor met_by_all = rows_of_all(group, row_of(), "who is connected");
  for (int rank = 0; rank < size; ++rank) {
    if (sockets[rank] && met_by_all[rank][here].item<uint8_t>() != 0) continue;
    if (wanted[rank] && rank < here) {
      MUSTER_LOG(info) << "rank " << rank << " at " << addresses[rank]
                       << " cannot be reached at a port of its own; what it sums travels over its server";
    }
    sockets[rank] = Descriptor();
  }
  return sockets;
}

}  // namespace muster
