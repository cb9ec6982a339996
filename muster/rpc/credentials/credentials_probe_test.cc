#include "muster/rpc/credentials/credentials_probe.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

namespace muster::credentials_probe_test {
namespace {

TEST(CredentialsProbe, OutlivesAPeerThatAcceptsAndHangsUp) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::listen(listener, 16), 0);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
  std::jthread peer([listener] {
    for (int fd = ::accept(listener, nullptr, nullptr); fd >= 0; fd = ::accept(listener, nullptr, nullptr)) {
      const linger now{.l_onoff = 1, .l_linger = 0};
      ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
      ::close(fd);
    }
  });

  for (int time = 0; time < 300; ++time) {
    EXPECT_EQ(credentials_refusal("127.0.0.1:" + std::to_string(ntohs(address.sin_port)), "", {}), std::nullopt);
  }

  ::shutdown(listener, SHUT_RDWR);
  peer.join();
  ::close(listener);
}

}  // namespace
}  // namespace muster::credentials_probe_test
