#include "muster/rpc/credentials/credentials_probe.h"

#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>

#include "muster/base/status.h"
#include "muster/io/signal_blocked.h"
#include "muster/lines/tcp_socket.h"
#include "muster/rpc/credentials/certificates.h"
#include "muster/rpc/freed_by.h"

namespace muster {
namespace {

using ProbeClock = std::chrono::steady_clock;
constexpr auto kConnect = std::chrono::milliseconds(300);  // who needs longer is taken for one that is not there
constexpr auto kTalk = std::chrono::seconds(1);

using Context = std::unique_ptr<SSL_CTX, FreedBy<SSL_CTX_free>>;
using Session = std::unique_ptr<SSL, FreedBy<SSL_free>>;
using Memory = std::unique_ptr<BIO, FreedBy<BIO_free_all>>;
using ShownCertificate = std::unique_ptr<X509, FreedBy<X509_free>>;
using OwnKey = std::unique_ptr<EVP_PKEY, FreedBy<EVP_PKEY_free>>;

// A connection that does not wait by itself, closed in the end.
class Connection {
 public:
  Connection() = default;
  ~Connection() {
    if (socket_ >= 0) ::close(socket_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool connect(const std::string& address) {
    deadline_ = ProbeClock::now() + kConnect;
    const std::string port = address.substr(address.rfind(':') + 1);
    addrinfo wish{};
    wish.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host_of_address(address).c_str(), port.c_str(), &wish, &found) != 0) return false;
    const std::unique_ptr<addrinfo, FreedBy<freeaddrinfo>> all(found);
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      if (socket_ >= 0) ::close(socket_);
      socket_ = ::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (socket_ < 0) continue;
      int error = 0;
      socklen_t size = sizeof error;
      if ((::connect(socket_, one->ai_addr, one->ai_addrlen) == 0 || errno == EINPROGRESS) && wait(POLLOUT) &&
          ::getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0) {
        deadline_ = ProbeClock::now() + kTalk;
        return true;
      }
    }
    return false;
  }

  // What OpenSSL says in the end, when it wants nothing more: SSL_ERROR_NONE, or what went wrong. Nothing if it is
  // late.
  template <class Step>
  std::optional<int> run(SSL* ssl, Step step) {
    while (true) {
      ERR_clear_error();
      const int done = step();
      const int error = done > 0 ? SSL_ERROR_NONE : SSL_get_error(ssl, done);
      if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) return error;
      if (!wait(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT)) return std::nullopt;
    }
  }

  int socket() const { return socket_; }

 private:
  bool wait(short events) const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - ProbeClock::now()).count();
    pollfd end{.fd = socket_, .events = events, .revents = 0};
    return left > 0 && ::poll(&end, 1, static_cast<int>(left)) == 1;
  }

  ProbeClock::time_point deadline_{};
  int socket_ = -1;
};

void show(SSL_CTX* context, const Tls& tls) {
  const Memory text(BIO_new_mem_buf(tls.certificate.data(), static_cast<int>(tls.certificate.size())));
  const ShownCertificate certificate(PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr));
  const Memory key_text(BIO_new_mem_buf(tls.key.data(), static_cast<int>(tls.key.size())));
  auto no_passphrase = [](char*, int, int, void*) { return 0; };
  const OwnKey key(PEM_read_bio_PrivateKey(key_text.get(), nullptr, no_passphrase, nullptr));
  if (certificate) SSL_CTX_use_certificate(context, certificate.get());
  if (key) SSL_CTX_use_PrivateKey(context, key.get());
}

std::string certificate_text(X509* certificate) {
  const Memory out(BIO_new(BIO_s_mem()));
  if (!out || PEM_write_bio_X509(out.get(), certificate) != 1) return "";
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

// What one attempt shows.
struct Attempt {
  bool speaks_tls = false;    // somebody has shown
  std::string certificate{};  // this
  bool speaks_else = false;   // or has said something else
  bool hung_up = false;       // after it has seen ours, without a word of what it talks
  std::string last_word{};    // of TLS, if there was one
};

Attempt attempt(const std::string& address, const Credentials& credentials) {
  const SignalBlocked no_signal(SIGPIPE);  // whoever accepts and hangs up, as the gateway of a task that is gone does
  Attempt seen;
  Connection connection;
  if (!connection.connect(address)) return seen;
  const Context context(SSL_CTX_new(TLS_client_method()));
  if (!context) return seen;
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_NONE, nullptr);  // it is looked at afterwards; nothing is told to it
  if (credentials.tls) show(context.get(), *credentials.tls);
  const Session ssl(SSL_new(context.get()));
  constexpr unsigned char kHttp2[] = "\x02h2";
  if (!ssl || SSL_set_fd(ssl.get(), connection.socket()) != 1 ||
      SSL_set_alpn_protos(ssl.get(), kHttp2, sizeof kHttp2 - 1) != 0)
    return seen;
  const std::optional<int> shaken = connection.run(ssl.get(), [&] { return SSL_connect(ssl.get()); });
  const int reason = shaken == SSL_ERROR_SSL ? ERR_GET_REASON(ERR_peek_error()) : 0;
  seen.speaks_else = reason != 0 && reason != SSL_R_UNEXPECTED_EOF_WHILE_READING && reason < SSL_AD_REASON_OFFSET;
  if (const ShownCertificate shown{SSL_get1_peer_certificate(ssl.get())}) {
    seen.speaks_tls = true;
    seen.certificate = certificate_text(shown.get());
  }
  std::optional<int> end = shaken;
  char byte = 0;
  // A server whose client may come in speaks first.
  if (end == SSL_ERROR_NONE) end = connection.run(ssl.get(), [&] { return SSL_read(ssl.get(), &byte, 1); });
  seen.hung_up = seen.speaks_tls && end.has_value() && *end != SSL_ERROR_NONE;
  if (seen.hung_up && *end == SSL_ERROR_SSL) {
    if (const char* reason = ERR_reason_error_string(ERR_peek_error())) seen.last_word = reason;
  }
  ERR_clear_error();
  return seen;
}

}  // namespace

std::optional<std::string> credentials_refusal(const std::string& address, const std::string& task,
                                               const Credentials& credentials) {
  const Attempt seen = attempt(address, credentials);
  if (!seen.speaks_tls && !seen.speaks_else) return std::nullopt;
  const std::string whose = task.empty() ? "" : str_cat(" of ", task);
  if (!credentials.tls) {
    if (!seen.speaks_tls) return std::nullopt;
    return str_cat("asks for TLS (its certificate is that of ", subject_of(seen.certificate), ", issued by ",
                   issuer_of(seen.certificate), "), and this client has no credentials");
  }
  const Tls& own = *credentials.tls;
  if (!seen.speaks_tls) {
    return str_cat("does not speak TLS; expected the certificate", whose, ", issued by ", authority_named(own.ca));
  }
  if (const auto wrong = certificate_complaint(seen.certificate, own.ca)) {
    return str_cat("shows a certificate that ", *wrong, ": it is that of ", subject_of(seen.certificate),
                   ", issued by ", issuer_of(seen.certificate), "; expected one", whose, ", issued by ",
                   authority_named(own.ca));
  }
  const CertificateUse use =
      task.empty() ? CertificateUse{.hosts = {host_of_address(address)}} : CertificateUse{.task = task};
  if (const auto wrong = use_complaint(seen.certificate, use)) {
    return str_cat("shows a certificate that ", *wrong);
  }
  const std::string ours =
      str_cat("this client's, that of ", subject_of(own.certificate), ", issued by ", issuer_of(own.certificate));
  if (const auto wrong = identity_complaint({own.certificate, own.key}, own.ca)) {
    return str_cat("cannot accept ", ours, ", which ", *wrong);
  }
  // Once may be a server that stops; twice, with a handshake that was complete, is none.
  if (seen.hung_up && attempt(address, credentials).hung_up) {
    return str_cat("does not accept ", ours, seen.last_word.empty() ? "" : str_cat(" (", seen.last_word, ")"));
  }
  return std::nullopt;
}

}  // namespace muster
