#include "muster/cluster/resolvers/kubernetes_client.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <httplib.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/cluster/read_file.h"
#include "muster/io/signal_blocked.h"
#include "muster/rpc/freed_by.h"

#ifndef CPPHTTPLIB_OPENSSL_SUPPORT
#error "cpp-httplib must be used with the flags of its pkg-config file: the library was compiled with them"
#endif

namespace muster {
namespace {

using nlohmann::json;
using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr size_t kMaxAnswer = 64 << 20;  // bytes of one page
constexpr size_t kMaxPods = 1'000'000;

using Bio = std::unique_ptr<BIO, FreedBy<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, FreedBy<X509_free>>;
using PrivateKey = std::unique_ptr<EVP_PKEY, FreedBy<EVP_PKEY_free>>;
using CertificateStore = std::unique_ptr<X509_STORE, FreedBy<X509_STORE_free>>;

Bio reader_of(const std::string& pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

std::vector<Certificate> certificates_of(const std::string& pem) {
  const Bio bio = reader_of(pem);
  std::vector<Certificate> certificates;
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
  }
  ERR_clear_error();  // The end of the text is an error to OpenSSL.
  return certificates;
}

PrivateKey key_of(const std::string& pem) {
  // An encrypted key must not ask for its password on the terminal.
  auto no_password = [](char*, int, int, void*) { return -1; };
  const Bio bio = reader_of(pem);
  PrivateKey key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  ERR_clear_error();
  return key;
}

struct Url {
  std::string host, path;
  int port;
};

std::optional<Url> parse_url(std::string_view text) {
  constexpr std::string_view kScheme = "https://";
  if (!text.starts_with(kScheme)) return std::nullopt;
  text.remove_prefix(kScheme.size());
  const std::string_view authority = text.substr(0, text.find('/'));
  std::string_view path = text.substr(authority.size());
  while (path.ends_with('/')) path.remove_suffix(1);
  const size_t bracket = authority.find(']');
  const size_t colon = authority.find(':', bracket == std::string_view::npos ? 0 : bracket);
  std::string_view host = authority.substr(0, colon);
  int port = 443;
  if (colon != std::string_view::npos && !absl::SimpleAtoi(std::string(authority.substr(colon + 1)), &port)) {
    return std::nullopt;
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  if (host.empty() || host.find('@') != std::string_view::npos || port <= 0 || port > 65535) return std::nullopt;
  return Url{std::string(host), std::string(path), port};
}

// Namespaces are part of the path, so nothing else may be in them.
bool is_namespace(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_islower(static_cast<unsigned char>(c)) || absl::ascii_isdigit(static_cast<unsigned char>(c)) ||
           c == '-';
  });
}

StatusCode code_of(int http_status) {
  switch (http_status) {
    case 400:
    case 422: return StatusCode::kInvalidArgument;
    case 401: return StatusCode::kUnauthenticated;
    case 403: return StatusCode::kPermissionDenied;
    case 404: return StatusCode::kNotFound;
    default: return StatusCode::kFailedPrecondition;
  }
}

std::string text_at(const json& object, const char* key) {
  auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// What the server says is wrong, as ": pods is forbidden"; Kubernetes does so in a Status object.
std::string message_of(const std::string& body) {
  const json answer = json::parse(body, nullptr, false);
  const std::string message = answer.is_object() ? text_at(answer, "message") : "";
  return message.empty() ? "" : ": " + message.substr(0, 1000);
}

}  // namespace

// One list of pods: a connection, its deadline, and the pages so far. Used by one thread.
class KubernetesClient::Listing {
 public:
  explicit Listing(const KubernetesClient& client)
      : client_(client), end_(now() + client.options_.deadline), http_(client.host_, client.port_) {
    prepare_tls();
    http_.set_keep_alive(true);
    http_.set_tcp_nodelay(true);
    http_.set_default_headers({{"Accept", "application/json"}, {"User-Agent", "muster"}});
    const std::string token = read_token();
    if (!token.empty()) http_.set_bearer_token_auth(token);
  }

  std::vector<Pod> all(const std::string& label_selector) {
    for (;;) {
      if (auto pods = try_all(label_selector)) return *std::move(pods);
      pause_or_fail("it forgot the list before the last page", client_.options_.first_delay);
    }
  }

 private:
  struct Attempt {
    int status = 0;  // HTTP's; 0 without an answer
    std::string body{};
    std::string trouble{};  // why there is no answer
    milliseconds pause{0};  // what the server asks for before the next one
  };

  // Nothing when the server no longer knows what the list was like when it began.
  std::optional<std::vector<Pod>> try_all(const std::string& label_selector) {
    const std::string path = client_.path_prefix_ + "/api/v1/namespaces/" + client_.config_.pod_namespace + "/pods";
    pods_.clear();
    std::string next_page;
    do {
      httplib::Params query = {{"labelSelector", label_selector},
                               {"limit", std::to_string(client_.options_.page_size)}};
      if (!next_page.empty()) query.emplace("continue", next_page);
      const std::optional<json> page = get(path, query);
      if (!page) return std::nullopt;
      next_page = add(*page);
    } while (!next_page.empty());
    return std::move(pods_);
  }

  steady_clock::time_point now() const { return client_.clock_.now(); }

  template <class... Parts>
  [[noreturn]] void fail(StatusCode code, const Parts&... parts) const {
    throw Error(Status(code, str_cat(client_.name_, ": ", parts...)));
  }

  void prepare_tls() {
    const KubernetesConfig& config = client_.config_;
    SSL_CTX* context = http_.ssl_context();
    http_.enable_server_certificate_verification(true);
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    if (!config.ca_certificates.empty()) {
      // A store for verification only: to the context's own one httplib adds the system's authorities.
      const CertificateStore store(X509_STORE_new());
      for (const Certificate& authority : certificates_of(config.ca_certificates)) {
        X509_STORE_add_cert(store.get(), authority.get());
      }
      SSL_CTX_set1_verify_cert_store(context, store.get());
    }
    // httplib compares the host too, but not the length of an IP address.
    X509_VERIFY_PARAM* param = SSL_CTX_get0_param(context);
    if (X509_VERIFY_PARAM_set1_ip_asc(param, client_.host_.c_str()) != 1) {
      X509_VERIFY_PARAM_set1_host(param, client_.host_.c_str(), client_.host_.size());
    }
    if (!config.client_certificate.empty()) {
      const std::vector<Certificate> chain = certificates_of(config.client_certificate);
      const PrivateKey key = key_of(config.client_key);
      SSL_CTX_use_certificate(context, chain[0].get());
      for (size_t i = 1; i < chain.size(); ++i) SSL_CTX_add1_chain_cert(context, chain[i].get());
      SSL_CTX_use_PrivateKey(context, key.get());
    }
    ERR_clear_error();  // What is left there, such as "no IP address", would be taken for a failure of the connection.
  }

  std::string read_token() const {
    const KubernetesConfig& config = client_.config_;
    std::string token = config.token_file.empty() ? config.token : read_file(config.token_file);
    absl::StripAsciiWhitespace(&token);
    const bool clean = std::all_of(token.begin(), token.end(),
                                   [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
    if (!clean) fail(StatusCode::kInvalidArgument, "the token has characters that cannot be sent");
    return token;
  }

  // Nothing when the page is one of a list that is gone.
  std::optional<json> get(const std::string& path, const httplib::Params& query) {
    milliseconds delay = client_.options_.first_delay;
    for (;;) {
      Attempt attempt = try_once(path, query);
      if (attempt.status == 410 && query.contains("continue")) return std::nullopt;
      if (attempt.status == 200) {
        json answer = json::parse(attempt.body, nullptr, false);
        if (!answer.is_discarded()) return answer;
        attempt.trouble = "its answer is not JSON";
      } else if (attempt.status != 0) {
        attempt.trouble = str_cat("HTTP status ", attempt.status, message_of(attempt.body));
        const bool may_pass = attempt.status == 429 || attempt.status >= 500;
        if (!may_pass) fail(code_of(attempt.status), attempt.trouble);
      }
      pause_or_fail(attempt.trouble, std::max(jittered(delay), attempt.pause));
      delay = std::min(delay * 2, client_.options_.longest_delay);
    }
  }

  void pause_or_fail(const std::string& trouble, milliseconds pause) {
    ++failures_;
    if (now() + pause >= end_) {
      fail(StatusCode::kUnavailable, trouble, "; gave up after ", failures_, failures_ == 1 ? " failure" : " failures",
           ", the deadline being ", client_.options_.deadline.count(), " ms");
    }
    MUSTER_LOG(warning) << client_.name_ << ": " << trouble << ", retry in " << pause.count() << " ms";
    client_.clock_.wait(pause);
  }

  Attempt try_once(const std::string& path, const httplib::Params& query) {
    const auto left = duration_cast<milliseconds>(end_ - now());
    const milliseconds timeout = std::max(milliseconds(1), std::min(left, client_.options_.request_timeout));
    http_.set_connection_timeout(timeout);
    http_.set_read_timeout(timeout);
    http_.set_write_timeout(timeout);
    Attempt attempt;
    auto receive = [&](const char* data, size_t size) {
      attempt.body.append(data, size);
      return attempt.body.size() <= kMaxAnswer && now() < end_;
    };
    const httplib::Result result = http_.Get(path, query, httplib::Headers(), receive);
    if (result) {
      attempt.status = result->status;
      int seconds = 0;
      if (absl::SimpleAtoi(result->get_header_value("Retry-After"), &seconds) && seconds > 0) {
        attempt.pause = std::chrono::seconds(seconds);
      }
      return attempt;
    }
    if (result.error() == httplib::Error::SSLServerVerification) {
      const long why = http_.get_openssl_verify_result();
      fail(StatusCode::kUnauthenticated, "its certificate is refused: ",
           why == X509_V_OK ? "it is for another host" : X509_verify_cert_error_string(why));
    }
    if (attempt.body.size() > kMaxAnswer) {
      fail(StatusCode::kDataLoss, "its answer has more than ", kMaxAnswer, " bytes");
    }
    if (result.error() == httplib::Error::Canceled) {
      attempt.trouble = "its answer takes too long";
    } else if (result.error() == httplib::Error::Read) {
      attempt.trouble = "it hung up, or was silent for too long";
    } else {
      attempt.trouble = httplib::to_string(result.error());
    }
    return attempt;
  }

  // Takes the pods of a page and returns what to ask for the next one with.
  std::string add(const json& page) {
    const auto items = page.find("items");
    if (items == page.end() || !(items->is_array() || items->is_null())) {
      fail(StatusCode::kDataLoss, "its answer is no list of pods");
    }
    for (const json& item : *items) {
      if (!item.is_object() || !item.contains("metadata") || !item["metadata"].is_object()) {
        fail(StatusCode::kDataLoss, "its answer has a pod without metadata");
      }
      const auto status = item.find("status");
      const bool has_status = status != item.end() && status->is_object();
      pods_.push_back({.name = text_at(item["metadata"], "name"),
                       .phase = has_status ? text_at(*status, "phase") : "",
                       .ip = has_status ? text_at(*status, "podIP") : ""});
    }
    if (pods_.size() > kMaxPods) fail(StatusCode::kDataLoss, "its list has more than ", kMaxPods, " pods");
    auto metadata = page.find("metadata");
    return metadata != page.end() && metadata->is_object() ? text_at(*metadata, "continue") : "";
  }

  // Half of it or more, so that tasks that started together do not ask together for ever.
  milliseconds jittered(milliseconds delay) {
    return milliseconds(std::uniform_int_distribution<milliseconds::rep>(delay.count() / 2, delay.count())(random_));
  }

  const KubernetesClient& client_;
  const steady_clock::time_point end_;
  httplib::SSLClient http_;
  std::vector<Pod> pods_;
  int failures_ = 0;
  std::minstd_rand random_{std::random_device()()};
};

KubernetesClient::Clock KubernetesClient::Clock::steady() {
  return {.now = [] { return steady_clock::now(); },
          .wait = [](milliseconds pause) { std::this_thread::sleep_for(pause); }};
}

KubernetesClient::KubernetesClient(KubernetesConfig config, KubernetesClientOptions options, Clock clock)
    : config_(std::move(config)),
      options_(std::move(options)),
      clock_(std::move(clock)),
      name_("Kubernetes API server " + config_.server) {
  const std::optional<Url> url = parse_url(config_.server);
  if (!url) throw invalid_argument(name_, ": expected https://host:port");
  host_ = url->host;
  port_ = url->port;
  path_prefix_ = url->path;
  if (!is_namespace(config_.pod_namespace)) {
    throw invalid_argument("Kubernetes namespace \"", config_.pod_namespace,
                           "\": expected small letters, digits and '-'");
  }
  if (!config_.ca_certificates.empty() && certificates_of(config_.ca_certificates).empty()) {
    throw invalid_argument(name_, ": no certificate is in the text of its authority; expected PEM");
  }
  if (config_.client_certificate.empty()) return;
  const std::vector<Certificate> chain = certificates_of(config_.client_certificate);
  if (chain.empty()) throw invalid_argument(name_, ": no certificate is in the text of ours; expected PEM");
  const PrivateKey key = key_of(config_.client_key);
  if (!key || X509_check_private_key(chain[0].get(), key.get()) != 1) {
    throw invalid_argument(name_, ": our key is not that of our certificate; expected PEM without a password");
  }
}

std::vector<Pod> KubernetesClient::pods(const std::string& label_selector) const {
  const SignalBlocked no_sigpipe(SIGPIPE);
  return Listing(*this).all(label_selector);
}

}  // namespace muster
