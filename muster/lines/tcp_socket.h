// TCP at a port of one's own, beside that of the server.
#pragma once

#include <chrono>
#include <string>

#include "muster/near/near_process.h"

namespace muster {

// Where a process listens.
struct TcpDoor {
  Descriptor listener{};
  int port = 0;           // 0: it does not
  bool ip4_only = false;  // else by both
};
// `host`: at whose address it can be reached, as in "host:port" without the port; empty: at all of this machine's.
TcpDoor listen_at_any_port(const std::string& host);
// Who has connected next; without a number: nobody has.
Descriptor accept_at(const TcpDoor& door);

// Of "host:port", without the brackets of an address of IPv6.
std::string host_of_address(const std::string& address);
// Begins to connect, and does not wait but for the name of the host. Without a number: there is no such host.
Descriptor begin_to_connect(const std::string& host, int port, bool ip4_only);
// Nothing that is sent waits for what may come after it; and a peer whose machine has gone without a word is found out.
void make_ready(const Descriptor& socket);
// Waits until `event` of poll() has happened. False: not until then, or never.
bool becomes(const Descriptor& socket, short event, std::chrono::steady_clock::time_point until);

}  // namespace muster
