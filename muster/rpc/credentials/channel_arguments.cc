#include "muster/rpc/credentials/channel_arguments.h"

#include <absl/synchronization/mutex.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/log.h>
#include <grpcpp/grpcpp.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include "muster/rpc/credentials/handshake_watch.h"
#include "muster/runtime/switched_on.h"

namespace muster {
namespace {

// gRPC reads messages into memory of malloc, which for threads other than the first gives a free heap back to the
// system at once, and takes it again for the next message: half of the time of a large one. This keeps it, up to 64 MiB
// a heap. Whoever sets one of these sets all: malloc stops moving the others by itself. A heap for each core is as many
// as are used at a time; malloc would make eight, and fill them all with holes within hours.
void keep_memory_of_messages() {
#ifdef __GLIBC__
  mallopt(M_ARENA_MAX, std::max(2, static_cast<int>(std::thread::hardware_concurrency())));
  mallopt(M_TOP_PAD, 64 << 20);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
}

// Debian builds abseil with its search for deadlocks on, and gRPC locks a lot: without it a small call takes a fifth
// less time.
void search_for_no_deadlocks() {
#ifdef NDEBUG
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
}

}  // namespace

bool set_process_up() {
  static std::atomic<bool> done = false;
  if (done.exchange(true)) return false;
  if (!switched_on("MUSTER_PROCESS_SETTINGS")) return false;
  search_for_no_deadlocks();
  keep_memory_of_messages();
  // What it has to say is in the errors that we throw. GRPC_VERBOSITY brings it back.
  if (std::getenv("GRPC_VERBOSITY") == nullptr) gpr_set_log_function([](gpr_log_func_args*) {});
  return true;
}

void set_transport_arguments(const std::function<void(const char* name, int value)>& set) {
  set_process_up();
  set(GRPC_ARG_KEEPALIVE_TIME_MS, 5'000);
  set(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  set(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  set(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  set(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1'000);
  set(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  set(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, 4 << 20);
  set(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 20);
  set(GRPC_ARG_HTTP2_WRITE_BUFFER_SIZE, 4 << 20);
  set(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  set(GRPC_ARG_TCP_READ_CHUNK_SIZE, 1 << 20);
  set(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, 64 << 10);
  set(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 << 20);
}

namespace {

// gRPC asks before every handshake. Its C++ door to that reads files by a thread of its own, and takes them unseen.
class RenewedServerCredentials final : public grpc::ServerCredentials {
 public:
  explicit RenewedServerCredentials(std::shared_ptr<CurrentCredentials> current)
      : current_(std::move(current)),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, &RenewedServerCredentials::fetch, this))) {}
  ~RenewedServerCredentials() override { grpc_server_credentials_release(credentials_); }
  RenewedServerCredentials(const RenewedServerCredentials&) = delete;
  RenewedServerCredentials& operator=(const RenewedServerCredentials&) = delete;

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // gRPC calls it for one connection at a time.
  static grpc_ssl_certificate_config_reload_status fetch(void* self, grpc_ssl_server_certificate_config** config) {
    auto& mine = *static_cast<RenewedServerCredentials*>(self);
    std::shared_ptr<const Credentials> now = mine.current_->get();
    if (now == mine.shown_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair{now->tls->key.c_str(), now->tls->certificate.c_str()};
    *config = grpc_ssl_server_certificate_config_create(now->tls->ca.c_str(), &pair, 1);
    mine.shown_ = std::move(now);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const std::shared_ptr<CurrentCredentials> current_;
  std::shared_ptr<const Credentials> shown_;
  grpc_server_credentials* const credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> server_credentials(const std::shared_ptr<CurrentCredentials>& credentials) {
  if (!credentials->get()->tls) return grpc::InsecureServerCredentials();
  return std::make_shared<RenewedServerCredentials>(credentials);
}

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const Credentials& credentials) {
  if (!credentials.tls) return grpc::InsecureChannelCredentials();
  keep_handshakes_out_of_the_log();
  return grpc::SslCredentials({.pem_root_certs = credentials.tls->ca,
                               .pem_private_key = credentials.tls->key,
                               .pem_cert_chain = credentials.tls->certificate});
}

}  // namespace muster
