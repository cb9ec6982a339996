#pragma once

#include <functional>
#include <string>

namespace muster {

// Hears of the TLS handshakes that fail at a port of this process. gRPC tells nobody but its log: so the first watch
// puts itself in the place of gRPC's log function, for the rest of the process. Everything else that gRPC logs goes to
// ours. Limit: the line in the log does not say whose handshake it was. It is taken for that of the connection which
// was the last to receive something and has received little so far; two that fail in the same few milliseconds may be
// mixed up.
// It looks for that connection among all descriptors of the process, for at most a fiftieth of the time: who is
// refused faster than that stays unnamed.
class HandshakeWatch {
 public:
  // `host` as gRPC writes it, "ipv4:10.0.0.1"; empty if the connection is not found. Called on a thread of gRPC's,
  // which it must not block, and not any more once the watch is destroyed.
  using Failed = std::function<void(const std::string& host, const std::string& why)>;

  HandshakeWatch(int port, Failed failed);
  ~HandshakeWatch();
  HandshakeWatch(const HandshakeWatch&) = delete;
  HandshakeWatch& operator=(const HandshakeWatch&) = delete;
};

// For clients: a handshake of theirs that fails is told by their call, and gRPC need not log every attempt.
void keep_handshakes_out_of_the_log();

}  // namespace muster
