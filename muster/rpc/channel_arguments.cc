#include "muster/rpc/channel_arguments.h"

#include <absl/synchronization/mutex.h>
#include <grpc/grpc.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace muster {
namespace {

// gRPC reads messages into memory of malloc, which for threads other than the first gives a free heap back to the
// system at once, and takes it again for the next message: half of the time of a large one. This keeps it, up to 64 MiB
// a heap. Whoever sets one of these sets all: malloc stops moving the others by itself.
void keep_memory_of_messages() {
#ifdef __GLIBC__
  mallopt(M_TOP_PAD, 64 << 20);
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
}

}  // namespace

void set_transport_arguments(const std::function<void(const char* name, int value)>& set) {
#ifdef NDEBUG
  // Debian builds abseil with its search for deadlocks on, and gRPC locks a lot: without it a small call takes a fifth
  // less time.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
#endif
  keep_memory_of_messages();
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

std::shared_ptr<grpc::ServerCredentials> server_credentials(const Credentials& credentials) {
  if (!credentials.tls) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = credentials.tls->ca;
  options.pem_key_cert_pairs.push_back({credentials.tls->key, credentials.tls->certificate});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> channel_credentials(const Credentials& credentials) {
  if (!credentials.tls) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({.pem_root_certs = credentials.tls->ca,
                               .pem_private_key = credentials.tls->key,
                               .pem_cert_chain = credentials.tls->certificate});
}

}  // namespace muster
