// Certificates for the tasks of a cluster, and the authority that signs them.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace muster {

// A certificate and the key that belongs to it: texts in PEM.
struct Identity {
  std::string certificate;
  std::string key;
};

struct CertificateOptions {
  std::string name;                  // whose it is, for people: "worker-0"
  std::vector<std::string> hosts{};  // where its task is reached: names and addresses
  std::chrono::days valid_for{365};  // negative: it has expired
};

// Signs itself, and whatever is made with it; a certificate that it signs cannot sign others.
// All makers throw Error{kInvalidArgument} for a time that no certificate can tell.
Identity make_authority(const std::string& name, std::chrono::days valid_for);

// For either end of a connection. Besides its hosts it names "muster", which is what a channel asks every task for. It
// ends with its authority at the latest. Throws Error{kInvalidArgument} if `authority` is none.
Identity make_certificate(const Identity& authority, const CertificateOptions& options);

// What is wrong with an identity, in words: `has expired`. Nothing if `authority`, a certificate, has signed it, it is
// valid now, its key belongs to it, and it names all `hosts`.
std::optional<std::string> identity_complaint(const Identity& identity, const std::string& authority,
                                              const std::vector<std::string>& hosts = {});

// When a certificate ends. Throws Error{kInvalidArgument} for what is no certificate.
std::chrono::system_clock::time_point expiry(const std::string& certificate);

// 32 random bytes, in hex.
std::string make_token();

}  // namespace muster
