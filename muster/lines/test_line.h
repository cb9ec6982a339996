// Two ends of a TCP connection in one process.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <memory>
#include <utility>

#include "muster/lines/parcel.h"
#include "muster/lines/tcp_socket.h"

namespace muster::testing_support {

inline std::pair<Descriptor, Descriptor> tcp_pair() {
  const TcpDoor door = listen_at_any_port("127.0.0.1");
  Descriptor one = begin_to_connect("127.0.0.1", door.port, door.ip4_only);
  EXPECT_TRUE(becomes(door.listener, POLLIN, std::chrono::steady_clock::now() + std::chrono::seconds(10)));
  return {std::move(one), accept_at(door)};
}

struct TestLine {
  TestLine() {
    auto [from, to] = tcp_pair();
    out = std::make_shared<LineOut>(std::move(from), 7);
    in = std::make_shared<LineIn>(std::move(to), 7);
  }

  std::shared_ptr<LineOut> out;
  std::shared_ptr<LineIn> in;
};

}  // namespace muster::testing_support
