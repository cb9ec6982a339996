#include "muster/rpc/calls/nobody_listens.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <memory>

#include "muster/lines/tcp_socket.h"
#include "muster/rpc/freed_by.h"

namespace muster {
namespace {

constexpr const char* kNobodyDetail = "muster: nobody listens";
constexpr auto kToBeRefused = std::chrono::milliseconds(300);

enum class Knock { kRefused, kCannotBeTried, kOther };

// What this machine says of itself: an IPv6 address, for one, where there is no IPv6.
bool has_no_way(int error) { return error == EAFNOSUPPORT || error == EADDRNOTAVAIL || error == ENETUNREACH; }

Knock knock_at(const addrinfo& place) {
  const Descriptor socket(::socket(place.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return has_no_way(errno) ? Knock::kCannotBeTried : Knock::kOther;
  if (::connect(socket.number(), place.ai_addr, place.ai_addrlen) == 0) return Knock::kOther;
  if (errno == ECONNREFUSED) return Knock::kRefused;
  if (errno != EINPROGRESS) return has_no_way(errno) ? Knock::kCannotBeTried : Knock::kOther;
  pollfd end{.fd = socket.number(), .events = POLLOUT, .revents = 0};
  int error = 0;
  socklen_t size = sizeof error;
  const bool refused = ::poll(&end, 1, static_cast<int>(kToBeRefused.count())) == 1 &&
                       ::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == ECONNREFUSED;
  return refused ? Knock::kRefused : Knock::kOther;
}

}  // namespace

bool nobody_listens(const addrinfo* places) {
  bool refused = false;
  for (const addrinfo* place = places; place != nullptr; place = place->ai_next) {
    switch (knock_at(*place)) {
      case Knock::kRefused: refused = true; break;
      case Knock::kCannotBeTried: break;
      case Knock::kOther: return false;
    }
  }
  return refused;
}

bool nobody_listens(const std::string& address) {
  addrinfo wish{};
  wish.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = address.substr(address.rfind(':') + 1);
  if (::getaddrinfo(host_of_address(address).c_str(), port.c_str(), &wish, &found) != 0) return false;
  const std::unique_ptr<addrinfo, FreedBy<freeaddrinfo>> all(found);
  return nobody_listens(found);
}

Status nobody_there(const Status& failure) {
  return {failure.code(), failure.message(), failure.task(), kNobodyDetail};
}

bool is_nobody_there(const Status& status) {
  return status.code() == StatusCode::kUnavailable && status.detail() == kNobodyDetail;
}

}  // namespace muster
