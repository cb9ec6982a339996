// An API server of Kubernetes that knows pods only, with TLS, for the tests. Not part of the library.
#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <httplib.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "muster/base/check.h"

namespace muster::testing_support {

// A certificate with its key.
struct Identity {
  std::shared_ptr<X509> certificate;
  std::shared_ptr<EVP_PKEY> key;

  std::string certificate_pem() const {
    return written([&](BIO* out) { PEM_write_bio_X509(out, certificate.get()); });
  }
  std::string key_pem() const {
    return written([&](BIO* out) { PEM_write_bio_PrivateKey(out, key.get(), nullptr, nullptr, 0, nullptr, nullptr); });
  }

 private:
  template <class Write>
  static std::string written(Write write) {
    std::unique_ptr<BIO, decltype(&BIO_free_all)> out(BIO_new(BIO_s_mem()), BIO_free_all);
    write(out.get());
    char* data = nullptr;
    const long size = BIO_get_mem_data(out.get(), &data);
    return std::string(data, static_cast<size_t>(size));
  }
};

// Signs certificates.
class Authority {
 public:
  explicit Authority(const char* name = "muster test authority") : own_(make(name, nullptr, "", 3600)) {}

  // `names` as OpenSSL writes them: "IP:127.0.0.1,DNS:localhost". A negative age has run out.
  Identity issue(const char* names, long valid_for_seconds = 3600) const {
    return make("muster test", &own_, names, valid_for_seconds);
  }
  std::string certificate_pem() const { return own_.certificate_pem(); }

  std::shared_ptr<X509_STORE> store() const {
    std::shared_ptr<X509_STORE> store(X509_STORE_new(), X509_STORE_free);
    X509_STORE_add_cert(store.get(), own_.certificate.get());
    return store;
  }

 private:
  // Without an issuer it signs itself and may sign others.
  static Identity make(const char* name, const Identity* issuer, const std::string& names, long valid_for_seconds) {
    Identity identity{{X509_new(), X509_free}, {EVP_EC_gen("P-256"), EVP_PKEY_free}};
    X509* certificate = identity.certificate.get();
    X509_set_version(certificate, 2);
    static std::atomic<long> serial = 1;
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), serial++);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -7200);
    X509_gmtime_adj(X509_getm_notAfter(certificate), valid_for_seconds);
    X509_set_pubkey(certificate, identity.key.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
    const Identity& signer = issuer == nullptr ? identity : *issuer;
    X509_set_issuer_name(certificate, X509_get_subject_name(signer.certificate.get()));
    if (issuer == nullptr) add(certificate, NID_basic_constraints, "critical,CA:TRUE");
    if (!names.empty()) add(certificate, NID_subject_alt_name, names);
    MUSTER_CHECK(X509_sign(certificate, signer.key.get(), EVP_sha256()) > 0);
    return identity;
  }

  static void add(X509* certificate, int kind, const std::string& value) {
    X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value.c_str());
    MUSTER_CHECK(extension != nullptr);
    X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
  }

  Identity own_;
};

struct KubernetesTestServerOptions {
  Identity identity;
  std::shared_ptr<X509_STORE> client_authorities{};  // whose certificates clients must show
};

// Answers lists of pods page by page, and before that whatever it was told to answer instead.
// Thread-safe.
class KubernetesTestServer {
 public:
  using Handler = std::function<void(const httplib::Request&, httplib::Response&)>;

  explicit KubernetesTestServer(const KubernetesTestServerOptions& options)
      : http_(options.identity.certificate.get(), options.identity.key.get(), with_reference(options)) {
    http_.Get(R"((/prefix)?/api/v1/namespaces/([^/]+)/pods)",
              [this](const httplib::Request& request, httplib::Response& response) { answer(request, response); });
    http_.set_tcp_nodelay(true);
    port_ = http_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { http_.listen_after_bind(); });
    while (!http_.is_running()) std::this_thread::yield();  // stop() does nothing before.
  }
  ~KubernetesTestServer() {
    http_.stop();
    thread_.join();
  }

  std::string url(const std::string& host = "127.0.0.1") const {
    return "https://" + host + ":" + std::to_string(port_);
  }
  int port() const { return port_; }

  void add_pod(const std::string& selector, const std::string& name, const std::string& phase, const std::string& ip) {
    absl::MutexLock lock(&mu_);
    pods_[selector].push_back(
        {{"metadata", {{"name", name}}}, {"status", {{"phase", phase}, {"podIP", ip}, {"hostIP", "192.168.0.1"}}}});
  }

  // For the next question only; more of them are used one after the other.
  void answer_next(Handler handler) {
    absl::MutexLock lock(&mu_);
    instead_.push_back(std::move(handler));
  }
  void answer_next(int status, const std::string& message) {
    answer_next([=](const httplib::Request&, httplib::Response& response) {
      response.status = status;
      response.set_content(nlohmann::json({{"kind", "Status"}, {"message", message}}).dump(), "application/json");
    });
  }

  std::vector<httplib::Request> requests() const {
    absl::MutexLock lock(&mu_);
    return requests_;
  }

 private:
  static X509_STORE* with_reference(const KubernetesTestServerOptions& options) {
    if (options.client_authorities) X509_STORE_up_ref(options.client_authorities.get());
    return options.client_authorities.get();
  }

  void answer(const httplib::Request& request, httplib::Response& response) {
    if (Handler handler = next_handler(request)) {
      handler(request, response);
    } else {
      list(request, response);
    }
  }

  Handler next_handler(const httplib::Request& request) {
    absl::MutexLock lock(&mu_);
    requests_.push_back(request);
    if (instead_.empty()) return nullptr;
    Handler handler = std::move(instead_.front());
    instead_.pop_front();
    return handler;
  }

  void list(const httplib::Request& request, httplib::Response& response) {
    absl::MutexLock lock(&mu_);
    const std::vector<nlohmann::json>& pods = pods_[request.get_param_value("labelSelector")];
    const std::string from = request.get_param_value("continue"), limit = request.get_param_value("limit");
    const size_t begin = from.empty() ? 0 : std::stoul(from);
    const size_t end = std::min(pods.size(), begin + (limit.empty() ? pods.size() : std::stoul(limit)));
    nlohmann::json items = nlohmann::json::array();
    for (size_t i = begin; i < end; ++i) items.push_back(pods[i]);
    const std::string next = end < pods.size() ? std::to_string(end) : "";
    response.set_content(
        nlohmann::json({{"kind", "PodList"}, {"metadata", {{"continue", next}}}, {"items", items}}).dump(),
        "application/json");
  }

  int port_ = 0;
  mutable absl::Mutex mu_;
  std::map<std::string, std::vector<nlohmann::json>> pods_ ABSL_GUARDED_BY(mu_);
  std::deque<Handler> instead_ ABSL_GUARDED_BY(mu_);
  std::vector<httplib::Request> requests_ ABSL_GUARDED_BY(mu_);
  httplib::SSLServer http_;
  std::thread thread_;
};

}  // namespace muster::testing_support
