#include "muster/rpc/credentials/handshake_watch.h"

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <grpc/support/log.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>

#include "muster/base/log.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr uint32_t kRecent = 1000;     // ms since the connection has received something
constexpr uint64_t kYoung = 64 << 10;  // bytes: more is no handshake
constexpr std::string_view kHandshakes =
    "ssl_transport_security.cc";  // of gRPC, where a handshake that fails is logged

absl::Mutex watches_mu(absl::kConstInit);
std::map<const HandshakeWatch*, std::pair<int, HandshakeWatch::Failed>>& watches()
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(watches_mu) {
  static auto& all = *new std::map<const HandshakeWatch*, std::pair<int, HandshakeWatch::Failed>>;
  return all;
}

int port_of(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port);
  return -1;
}

std::string host_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof(text));
    return str_cat("ipv4:", text);
  }
  const in6_addr& host = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&host)) {
    inet_ntop(AF_INET, &host.s6_addr[12], text, sizeof(text));
    return str_cat("ipv4:", text);
  }
  inet_ntop(AF_INET6, &host, text, sizeof(text));
  return str_cat("ipv6:[", text, "]");
}

// Of all connections to these ports, the one whose handshake has most likely just failed.
struct YoungConnection {
  int port;
  std::string host;
};
std::optional<YoungConnection> latest_young(const std::map<int, bool>& ports) {
  std::optional<YoungConnection> found;
  std::tuple<uint32_t, uint64_t> best;
  DIR* files = ::opendir("/proc/self/fd");
  if (files == nullptr) return found;
  while (const dirent* entry = ::readdir(files)) {
    const std::string_view name = entry->d_name;
    int file = -1;
    if (std::from_chars(name.data(), name.data() + name.size(), file).ec != std::errc()) continue;
    sockaddr_storage local{}, peer{};
    socklen_t local_size = sizeof(local), peer_size = sizeof(peer);
    if (::getsockname(file, reinterpret_cast<sockaddr*>(&local), &local_size) != 0) continue;
    if (!ports.contains(port_of(local))) continue;
    if (::getpeername(file, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) continue;
    tcp_info info{};
    socklen_t size = sizeof(info);
    if (::getsockopt(file, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    if (info.tcpi_last_data_recv > kRecent || info.tcpi_bytes_received == 0 || info.tcpi_bytes_received > kYoung)
      continue;
    const std::tuple<uint32_t, uint64_t> rank{info.tcpi_last_data_recv, info.tcpi_bytes_received};
    if (found && best <= rank) continue;
    best = rank;
    found = YoungConnection{port_of(local), host_of(peer)};
  }
  ::closedir(files);
  return found;
}

// What may be spent on looking at descriptors: saved up while handshakes go well.
class Allowance {
 public:
  using Clock = std::chrono::steady_clock;

  bool left(Clock::time_point now) {
    saved_ = std::min(kMost, saved_ + (now - since_) / kShare);
    since_ = now;
    return saved_ > Clock::duration::zero();
  }
  void spend(Clock::duration time) { saved_ -= time; }

 private:
  static constexpr Clock::duration kMost = std::chrono::milliseconds(100);
  static constexpr int kShare = 50;
  Clock::duration saved_ = kMost;
  Clock::time_point since_ = Clock::now();
};

Allowance& allowance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(watches_mu) {
  static auto& the = *new Allowance;
  return the;
}

void tell_of_handshake(const std::string& why) {
  std::map<int, bool> ports;
  bool look = false;
  {
    absl::MutexLock lock(&watches_mu);
    for (const auto& [watch, wants] : watches()) ports[wants.first] = true;
    look = !ports.empty() && allowance().left(Allowance::Clock::now());
  }
  std::optional<YoungConnection> connection;
  const auto begin = Allowance::Clock::now();
  if (look) connection = latest_young(ports);
  absl::MutexLock lock(&watches_mu);  // no watch ends while it is called
  if (look) allowance().spend(Allowance::Clock::now() - begin);
  if (look && !connection) return;  // a handshake of a client of this process, which says so itself
  for (const auto& [watch, wants] : watches()) {
    if (connection && connection->port != wants.first) continue;
    return wants.second(connection ? connection->host : "", why);
  }
}

void log(gpr_log_func_args* args) {
  const std::string_view path = args->file;
  const std::string_view file = path.substr(path.rfind('/') + 1);
  if (file == kHandshakes && args->severity == GPR_LOG_SEVERITY_ERROR) return tell_of_handshake(args->message);
  const std::string line = str_cat("gRPC, ", file, ":", args->line, ": ", args->message);
  if (args->severity == GPR_LOG_SEVERITY_ERROR) {
    MUSTER_LOG(error) << line;
  } else {
    MUSTER_LOG(info) << line;
  }
}

}  // namespace

void keep_handshakes_out_of_the_log() {
  static const bool done = [] {
    gpr_set_log_function(log);
    return true;
  }();
  static_cast<void>(done);
}

HandshakeWatch::HandshakeWatch(int port, Failed failed) {
  keep_handshakes_out_of_the_log();
  absl::MutexLock lock(&watches_mu);
  watches().emplace(this, std::pair(port, std::move(failed)));
}

HandshakeWatch::~HandshakeWatch() {
  absl::MutexLock lock(&watches_mu);
  watches().erase(this);
}

}  // namespace muster
