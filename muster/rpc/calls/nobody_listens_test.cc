#include "muster/rpc/calls/nobody_listens.h"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include "muster/lines/tcp_socket.h"
#include "muster/rpc/rpc_channel.h"

namespace muster {
namespace {

const std::string kLostPs = "/job:ps/replica:0/task:0";

class NobodyListens : public ::testing::Test {
 protected:
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  void leave() { door_ = {}; }

  TcpDoor door_ = listen_at_any_port("127.0.0.1");
  const int port_ = door_.port;
};

TEST_F(NobodyListens, WhereAPortIsNoProcesssAnyMore) {
  EXPECT_FALSE(nobody_listens(address())) << "one who answers nothing listens all the same";

  leave();

  EXPECT_TRUE(nobody_listens(address()));
}

TEST_F(NobodyListens, WhereThoseAddressesRefuseThatCanBeTried) {
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(static_cast<uint16_t>(port_));
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  addrinfo can{};
  can.ai_family = AF_INET;
  can.ai_addr = reinterpret_cast<sockaddr*>(&there);
  can.ai_addrlen = sizeof there;
  sockaddr of_no_kind{.sa_family = AF_UNSPEC, .sa_data = {}};
  addrinfo cannot{};
  cannot.ai_family = AF_UNSPEC;
  cannot.ai_addr = &of_no_kind;
  cannot.ai_addrlen = sizeof of_no_kind;
  EXPECT_FALSE(nobody_listens(&cannot)) << "which says nothing of the other end";

  cannot.ai_next = &can;
  EXPECT_FALSE(nobody_listens(&cannot));
  leave();
  EXPECT_TRUE(nobody_listens(&cannot));
}

TEST_F(NobodyListens, IsToldByAChannelWhoseTaskRefusesConnections) {
  leave();
  RpcChannel channel(address(), kLostPs, {});

  Status failure;
  try {
    channel.call("/muster.Test/Look", {});
  } catch (const Error& error) {
    failure = error.status();
  }

  EXPECT_EQ(failure.code(), StatusCode::kUnavailable) << failure;
  EXPECT_EQ(failure.task(), kLostPs);
  EXPECT_TRUE(is_nobody_there(failure)) << failure;
}

TEST(NobodyThere, IsSaidOfNoOtherFailure) {
  const Status cut(StatusCode::kUnavailable, "the connection was cut", kLostPs);

  EXPECT_FALSE(is_nobody_there(cut));
  EXPECT_TRUE(is_nobody_there(nobody_there(cut)));
  EXPECT_EQ(nobody_there(cut).message(), cut.message());
}

}  // namespace
}  // namespace muster
