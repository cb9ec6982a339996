#include "muster/collective/far_ranks.h"

#include <ATen/Functions.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <optional>

#include "muster/collective/rows_of_all.h"
#include "muster/lines/tcp_socket.h"
#include "muster/runtime/worker/run_options.h"

namespace muster {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kReachedWithin = std::chrono::seconds(2);

// What a rank shows of itself, and what is said at its port.
struct Door {
  uint64_t words[2] = {};  // known to those who were told over the group
  int64_t port = 0;        // 0: none
  int64_t ip4_only = 0;
};
struct Knock {
  uint64_t words[2] = {};
  int64_t rank = 0;
};

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

}  // namespace

std::vector<Descriptor> meet_far_ranks(Collectives& group, const std::vector<std::string>& addresses,
                                       const std::vector<bool>& wanted, GroupSockets who) {
  const int size = group.size(), here = group.rank();
  Door own{.words = {random_id(), random_id()}};
  const TcpDoor door = listen_at_any_port(who == GroupSockets::kOfThisMachine ? "127.0.0.1" : "");
  own.port = door.port;
  own.ip4_only = door.ip4_only;
  at::Tensor row = at::empty({static_cast<int64_t>(sizeof own)}, at::kByte);
  std::memcpy(row.mutable_data_ptr(), &own, sizeof own);
  const at::Tensor rows = rows_of_all(group, row, "ports");

  // Each calls those before it, all at once.
  std::vector<Descriptor> sockets(size);
  std::vector<Door> doors(size);
  for (int rank = 0; rank < size; ++rank) {
    std::memcpy(&doors[rank], rows[rank].contiguous().const_data_ptr(), sizeof(Door));
    if (rank < here && wanted[rank] && doors[rank].port != 0) {
      sockets[rank] = begin_to_connect(host_of_address(addresses[rank]), static_cast<int>(doors[rank].port),
                                       doors[rank].ip4_only != 0);
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
  while (expected > 0 && becomes(door.listener, POLLIN, heard)) {
    Descriptor socket = accept_at(door);
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
    sockets[rank] = Descriptor();
  }
  return sockets;
}

}  // namespace muster
