#include "muster/rpc/nobody_listens.h"

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

bool refuses(const addrinfo& place) {
  const Descriptor socket(::socket(place.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return false;
  if (::connect(socket.number(), place.ai_addr, place.ai_addrlen) == 0) return false;
  if (errno != EINPROGRESS) return errno == ECONNREFUSED;
  pollfd end{.fd = socket.number(), .events = POLLOUT, .revents = 0};
  int error = 0;
  socklen_t size = sizeof error;
  return ::poll(&end, 1, static_cast<int>(kToBeRefused.count())) == 1 &&
         ::getsockopt(socket.number(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == ECONNREFUSED;
}

}  // namespace

bool nobody_listens(const std::string& address) {
  addrinfo wish{};
  wish.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = address.substr(address.rfind(':') + 1);
  if (::getaddrinfo(host_of_address(address).c_str(), port.c_str(), &wish, &found) != 0) return false;
  const std::unique_ptr<addrinfo, FreedBy<freeaddrinfo>> all(found);
  for (const addrinfo* place = found; place != nullptr; place = place->ai_next) {
    if (!refuses(*place)) return false;
  }
  return true;
}

Status nobody_there(const Status& failure) {
  return {failure.code(), failure.message(), failure.task(), kNobodyDetail};
}

bool is_nobody_there(const Status& status) {
  return status.code() == StatusCode::kUnavailable && status.detail() == kNobodyDetail;
}

}  // namespace muster
