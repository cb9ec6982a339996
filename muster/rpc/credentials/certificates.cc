#include "muster/rpc/credentials/certificates.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <limits>
#include <memory>
#include <string_view>

#include "muster/base/status.h"
#include "muster/graph/device_spec.h"
#include "muster/rpc/freed_by.h"

namespace muster {
namespace {

constexpr std::chrono::hours kClockError(1);  // valid that much earlier, for machines whose clocks are behind
constexpr size_t kLongestName = 64;           // of a subject, in X.509
constexpr int kSerialBits = 127;              // random: two runs with one authority must not use a number twice
constexpr int kVersion3 = 2;

using Bio = std::unique_ptr<BIO, FreedBy<BIO_free_all>>;
using Certificate = std::unique_ptr<X509, FreedBy<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, FreedBy<EVP_PKEY_free>>;
using Extension = std::unique_ptr<X509_EXTENSION, FreedBy<X509_EXTENSION_free>>;
using HostNames = std::unique_ptr<GENERAL_NAMES, FreedBy<GENERAL_NAMES_free>>;
using HostName = std::unique_ptr<GENERAL_NAME, FreedBy<GENERAL_NAME_free>>;
using Address = std::unique_ptr<ASN1_OCTET_STRING, FreedBy<ASN1_OCTET_STRING_free>>;
using Number = std::unique_ptr<BIGNUM, FreedBy<BN_free>>;

std::string openssl_says() {
  std::array<char, 256> words{};
  ERR_error_string_n(ERR_get_error(), words.data(), words.size());
  ERR_clear_error();
  return words.data();
}

void must(bool done, std::string_view what) {
  if (!done) throw internal("OpenSSL cannot ", what, ": ", openssl_says());
}

template <class Write>
std::string written(Write write) {
  const Bio out(BIO_new(BIO_s_mem()));
  must(out && write(out.get()) == 1, "write PEM");
  char* data = nullptr;
  const long size = BIO_get_mem_data(out.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

Bio reader(const std::string& text) {
  Bio in(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  must(in != nullptr, "read from memory");
  return in;
}

// Nothing for what is no certificate.
Certificate parse_certificate(const std::string& text) {
  Certificate certificate(PEM_read_bio_X509(reader(text).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return certificate;
}

// All that a text has.
std::vector<Certificate> parse_certificates(const std::string& text) {
  std::vector<Certificate> all;
  const Bio in = reader(text);
  while (Certificate one{PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr)}) all.push_back(std::move(one));
  ERR_clear_error();
  return all;
}

Key parse_key(const std::string& text) {
  auto no_passphrase = [](char*, int, int, void*) { return 0; };  // else OpenSSL asks at the terminal
  Key key(PEM_read_bio_PrivateKey(reader(text).get(), nullptr, no_passphrase, nullptr));
  ERR_clear_error();
  return key;
}

Address parse_ip(const std::string& host) {
  Address address(a2i_IPADDRESS(host.c_str()));
  ERR_clear_error();
  return address;
}

bool is_named(X509* certificate, const std::string& host) {
  if (parse_ip(host)) return X509_check_ip_asc(certificate, host.c_str(), 0) == 1;
  return X509_check_host(certificate, host.data(), host.size(), X509_CHECK_FLAG_NEVER_CHECK_SUBJECT, nullptr) == 1;
}

// Made by hand: a text like "DNS:a,DNS:b" would let a host with a comma in it smuggle in another one.
HostNames host_names(const std::vector<std::string>& hosts) {
  HostNames names(GENERAL_NAMES_new());
  for (const std::string& host : hosts) {
    HostName name(GENERAL_NAME_new());
    if (Address address = parse_ip(host)) {
      GENERAL_NAME_set0_value(name.get(), GEN_IPADD, address.release());
    } else {
      ASN1_IA5STRING* text = ASN1_IA5STRING_new();
      must(ASN1_STRING_set(text, host.data(), static_cast<int>(host.size())) == 1, "name a host");
      GENERAL_NAME_set0_value(name.get(), GEN_DNS, text);
    }
    must(sk_GENERAL_NAME_push(names.get(), name.release()) > 0, "name a host");
  }
  return names;
}

void add_extension(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context{};
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Extension extension(X509V3_EXT_nconf_nid(nullptr, &context, kind, value));
  must(extension && X509_add_ext(certificate, extension.get(), -1) == 1, "add an extension");
}

void set_times(X509* certificate, std::chrono::days valid_for) {
  const auto days = valid_for.count();
  // One that has expired was valid for a day before.
  const auto begin = std::min<std::chrono::days::rep>(0, days - 1);
  constexpr long early = std::chrono::duration_cast<std::chrono::seconds>(kClockError).count();
  if (days > std::numeric_limits<int>::max() || days < std::numeric_limits<int>::min() / 2 ||
      X509_time_adj_ex(X509_getm_notBefore(certificate), static_cast<int>(begin), -early, nullptr) == nullptr ||
      X509_time_adj_ex(X509_getm_notAfter(certificate), static_cast<int>(days), 0, nullptr) == nullptr) {
    ERR_clear_error();
    throw invalid_argument("certificate: valid for ", days, " days, which ends later than a certificate can tell");
  }
}

Certificate unsigned_certificate(const std::string& name, EVP_PKEY* key, std::chrono::days valid_for) {
  Certificate certificate(X509_new());
  must(certificate && X509_set_version(certificate.get(), kVersion3) == 1, "make a certificate");
  const Number serial(BN_new());
  must(BN_rand(serial.get(), kSerialBits, BN_RAND_TOP_ANY, BN_RAND_BOTTOM_ANY) == 1 &&
           BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate.get())) != nullptr,
       "number a certificate");
  set_times(certificate.get(), valid_for);
  const std::string subject = name.substr(0, kLongestName);
  must(X509_set_pubkey(certificate.get(), key) == 1 &&
           X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                                      reinterpret_cast<const unsigned char*>(subject.data()),
                                      static_cast<int>(subject.size()), -1, 0) == 1,
       "name a certificate");
  return certificate;
}

Key make_key() {
  Key key(EVP_EC_gen("P-256"));
  must(key != nullptr, "make a key");
  return key;
}

Identity sign(X509* certificate, EVP_PKEY* key, X509* issuer, EVP_PKEY* issuer_key) {
  must(X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1, "name an issuer");
  add_extension(certificate, issuer, NID_subject_key_identifier, "hash");
  add_extension(certificate, issuer, NID_authority_key_identifier, "keyid:always");
  must(X509_sign(certificate, issuer_key, EVP_sha256()) > 0, "sign a certificate");
  return {.certificate = written([&](BIO* out) { return PEM_write_bio_X509(out, certificate); }),
          .key = written(
              [&](BIO* out) { return PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr); })};
}

}  // namespace

Identity make_authority(const std::string& name, std::chrono::days valid_for) {
  const Key key = make_key();
  const Certificate certificate = unsigned_certificate(name, key.get(), valid_for);
  add_extension(certificate.get(), certificate.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  add_extension(certificate.get(), certificate.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  return sign(certificate.get(), key.get(), certificate.get(), key.get());
}

Identity make_certificate(const Identity& authority, const CertificateOptions& options) {
  const Certificate issuer = parse_certificate(authority.certificate);
  const Key issuer_key = parse_key(authority.key);
  if (!issuer || !issuer_key || X509_check_private_key(issuer.get(), issuer_key.get()) != 1 ||
      X509_check_ca(issuer.get()) == 0) {
    ERR_clear_error();
    throw invalid_argument("certificate of ", options.name, ": the authority is not one, or its key is another's");
  }
  const Key key = make_key();
  const Certificate certificate = unsigned_certificate(options.name, key.get(), options.valid_for);
  if (ASN1_TIME_compare(X509_get0_notAfter(certificate.get()), X509_get0_notAfter(issuer.get())) > 0) {
    must(X509_set1_notAfter(certificate.get(), X509_get0_notAfter(issuer.get())) == 1, "end a certificate");
  }
  add_extension(certificate.get(), issuer.get(), NID_basic_constraints, "critical,CA:FALSE");
  add_extension(certificate.get(), issuer.get(), NID_key_usage, "critical,digitalSignature");
  const CertificateUse& use = options.use;
  add_extension(certificate.get(), issuer.get(), NID_ext_key_usage,
                use.task.empty() ? "clientAuth" : "serverAuth,clientAuth");
  if (!use.task.empty()) {
    std::vector<std::string> hosts{server_name(use.task), "localhost", "127.0.0.1", "::1"};
    hosts.insert(hosts.end(), use.hosts.begin(), use.hosts.end());
    const HostNames names = host_names(hosts);
    must(X509_add1_ext_i2d(certificate.get(), NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) == 1,
         "name the hosts");
  }
  return sign(certificate.get(), key.get(), issuer.get(), issuer_key.get());
}

std::optional<std::string> certificate_complaint(const std::string& text, const std::string& authorities) {
  const Certificate certificate = parse_certificate(text);
  if (!certificate) return "is no certificate";
  bool signed_by_one = false;
  for (const Certificate& issuer : parse_certificates(authorities)) {
    signed_by_one = signed_by_one || (X509_check_issued(issuer.get(), certificate.get()) == X509_V_OK &&
                                      X509_verify(certificate.get(), X509_get0_pubkey(issuer.get())) == 1);
  }
  ERR_clear_error();
  if (!signed_by_one) return "is signed by another authority";
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0) return "has expired";
  if (X509_cmp_current_time(X509_get0_notBefore(certificate.get())) > 0) return "is not valid yet";
  return std::nullopt;
}

std::optional<std::string> identity_complaint(const Identity& identity, const std::string& authorities) {
  if (auto complaint = certificate_complaint(identity.certificate, authorities)) return complaint;
  const Certificate certificate = parse_certificate(identity.certificate);
  const Key key = parse_key(identity.key);
  if (!key || X509_check_private_key(certificate.get(), key.get()) != 1) {
    ERR_clear_error();
    return "does not belong to its key";
  }
  return std::nullopt;
}

std::optional<std::string> use_complaint(const std::string& text, const CertificateUse& use) {
  const Certificate certificate = parse_certificate(text);
  if (!certificate) return "is no certificate";
  const bool serves = (X509_get_extended_key_usage(certificate.get()) & XKU_SSL_SERVER) != 0;
  const bool calls = (X509_get_extended_key_usage(certificate.get()) & XKU_SSL_CLIENT) != 0;
  if (!calls) return "is not for a client";
  if (use.task.empty() && use.hosts.empty()) {
    return serves ? std::optional<std::string>("is for a task, not for a client") : std::nullopt;
  }
  if (!serves) return "is for a client, not for a task";
  if (!use.task.empty() && !is_named(certificate.get(), server_name(use.task))) {
    return str_cat("is that of ", subject_of(text), ", not of ", short_name(use.task));
  }
  for (const std::string& host : use.hosts) {
    if (!is_named(certificate.get(), host)) return str_cat("does not name ", host);
  }
  return std::nullopt;
}

namespace {

std::string common_name(const X509_NAME* name) {
  std::array<char, 256> text{};
  // OpenSSL's old door, which needs no memory of its own; a certificate of ours has one CN.
  X509_NAME_get_text_by_NID(const_cast<X509_NAME*>(name), NID_commonName, text.data(), static_cast<int>(text.size()));
  std::string plain;
  for (const char* c = text.data(); *c != 0; ++c) plain += *c >= ' ' && *c <= '~' ? *c : '?';  // a stranger's words
  return str_cat("\"", plain, "\"");
}

std::string with_key(std::string name, const ASN1_OCTET_STRING* key) {
  if (key == nullptr || ASN1_STRING_length(key) < 4) return name;
  str_append(name, " (key ");
  for (int i = 0; i < 4; ++i) str_append(name, absl::Hex(ASN1_STRING_get0_data(key)[i], absl::kZeroPad2));
  return name + ")";
}

}  // namespace

std::string subject_of(const std::string& text) {
  const Certificate certificate = parse_certificate(text);
  return certificate ? common_name(X509_get_subject_name(certificate.get())) : "nobody";
}

std::string issuer_of(const std::string& text) {
  const Certificate certificate = parse_certificate(text);
  if (!certificate) return "nobody";
  return with_key(common_name(X509_get_issuer_name(certificate.get())), X509_get0_authority_key_id(certificate.get()));
}

std::string authority_named(const std::string& authority) {
  const Certificate certificate = parse_certificate(authority);
  if (!certificate) return "nobody";
  return with_key(common_name(X509_get_subject_name(certificate.get())), X509_get0_subject_key_id(certificate.get()));
}

std::string short_name(const std::string& task) {
  const DeviceSpec spec = DeviceSpec::parse(task);
  if (!spec.job || !spec.task) {
    throw invalid_argument("task \"", task, "\": expected a job and a number, like \"/job:ps/task:0\"");
  }
  return str_cat(*spec.job, "-", *spec.task);
}

std::string server_name(const std::string& task) { return short_name(task) + ".muster"; }

std::chrono::system_clock::time_point expiry(const std::string& certificate) {
  const Certificate parsed = parse_certificate(certificate);
  std::tm time{};
  if (!parsed || ASN1_TIME_to_tm(X509_get0_notAfter(parsed.get()), &time) != 1) {
    ERR_clear_error();
    throw invalid_argument("certificate: is none, or does not say when it ends");
  }
  return std::chrono::system_clock::from_time_t(timegm(&time));
}

std::string make_token() {
  std::array<unsigned char, 32> bytes{};
  must(RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) == 1, "draw a random token");
  std::string token;
  for (const unsigned char byte : bytes) str_append(token, absl::Hex(byte, absl::kZeroPad2));
  return token;
}

}  // namespace muster
