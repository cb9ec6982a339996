// A wire that can be cut, for tests of what a lost connection does. Not part of the library.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "muster/base/check.h"
#include "muster/base/strings.h"

namespace muster::testing_support {

// Listens on a port of loopback and carries bytes between whoever connects there and the server behind it. Thread-safe.
class Relay {
 public:
  // `behind` is "127.0.0.1:port".
  explicit Relay(const std::string& behind) : port_(std::stoi(behind.substr(behind.rfind(':') + 1))) {
    sockaddr_in any = loopback(0);
    socklen_t size = sizeof(any);
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUSTER_CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&any), size) == 0 && ::listen(listener_, 64) == 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&any), &size);
    address_ = str_cat("127.0.0.1:", ntohs(any.sin_port));
    thread_ = std::jthread([this](const std::stop_token& stop) { carry(stop); });
  }

  const std::string& address() const { return address_; }
  // Both sides of every connection find it reset. New ones may be made.
  void cut() { cut_.store(true); }
  // While it is on, nothing arrives and nobody is told.
  void swallow(bool on) { swallowing_.store(on); }

 private:
  static sockaddr_in loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }

  static void reset(int socket) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    ::close(socket);
  }

  void accept_one() {
    const int client = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    const int server = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in behind = loopback(port_);
    if (::connect(server, reinterpret_cast<const sockaddr*>(&behind), sizeof(behind)) != 0) {
      reset(server);
      return reset(client);
    }
    pairs_.emplace_back(client, server);
  }

  // Whether the connection goes on.
  static bool carry_some(int from, int to) {
    char bytes[1 << 16];
    const ssize_t count = ::recv(from, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    return count > 0 && ::send(to, bytes, static_cast<size_t>(count), MSG_NOSIGNAL) == count;
  }

  void carry(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (cut_.exchange(false)) close_all();
      const bool swallowing = swallowing_.load();
      std::vector<pollfd> ends{{.fd = listener_, .events = POLLIN, .revents = 0}};
      for (const auto& [client, server] : pairs_) {
        for (int end : {client, server}) ends.push_back({.fd = swallowing ? -1 : end, .events = POLLIN, .revents = 0});
      }
      ::poll(ends.data(), ends.size(), 5);  // ms: it also looks at what it is told
      const size_t known = pairs_.size();
      if (ends[0].revents != 0) accept_one();
      if (swallowing) continue;
      for (size_t i = known; i-- > 0;) {
        const auto [client, server] = pairs_[i];
        const bool goes_on = (ends[1 + 2 * i].revents == 0 || carry_some(client, server)) &&
                             (ends[2 + 2 * i].revents == 0 || carry_some(server, client));
        if (goes_on) continue;
        reset(client);
        reset(server);
        pairs_.erase(pairs_.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    close_all();
    ::close(listener_);
  }

  void close_all() {
    for (const auto& [client, server] : pairs_) {
      reset(client);
      reset(server);
    }
    pairs_.clear();
  }

  const int port_;
  int listener_ = -1;
  std::string address_;
  std::atomic<bool> cut_ = false, swallowing_ = false;
  std::vector<std::pair<int, int>> pairs_;  // of the thread
  std::jthread thread_;
};

}  // namespace muster::testing_support
