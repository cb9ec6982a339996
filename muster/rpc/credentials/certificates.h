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

// What a certificate is good for.
struct CertificateUse {
  std::string task{};  // "/job:ps/replica:0/task:0", whose it is; empty: a client's, which no task can show
  std::vector<std::string> hosts{};  // where the task is reached: names and addresses
};

struct CertificateOptions {
  std::string name;  // whose it is, for people: "worker-0"
  CertificateUse use{};
  std::chrono::days valid_for{365};  // negative: it has expired
};

// "/job:ps/replica:0/task:0" is "ps-0" for people and in the names of directories, and its certificate names
// "ps-0.muster". Throws Error{kInvalidArgument} for what names no task.
std::string short_name(const std::string& task);
std::string server_name(const std::string& task);

// Signs itself, and whatever is made with it; a certificate that it signs cannot sign others.
// All makers throw Error{kInvalidArgument} for a time that no certificate can tell.
Identity make_authority(const std::string& name, std::chrono::days valid_for);

// A task's is for either end of a connection, and names its task, its hosts and this machine as it is seen from itself
// (localhost), for who reaches it through a tunnel. A client's is for the end that calls. It ends with its authority at
// the latest. Throws Error{kInvalidArgument} if `authority` is none.
Identity make_certificate(const Identity& authority, const CertificateOptions& options);

// What is wrong with a certificate, in words: `has expired`. Nothing if one of `authorities`, certificates in one text,
// has signed it and it is valid now.
std::optional<std::string> certificate_complaint(const std::string& certificate, const std::string& authorities);
// The same of an identity, whose key must belong to it.
std::optional<std::string> identity_complaint(const Identity& identity, const std::string& authorities);
// Nothing if the certificate is good for this use and, a client's, for no other.
std::optional<std::string> use_complaint(const std::string& certificate, const CertificateUse& use);

// Of a certificate, for people: `"ps-0"`, and `"muster cluster authority" (key 1f0c9a3e)`. "nobody" of what is none.
std::string subject_of(const std::string& certificate);
std::string issuer_of(const std::string& certificate);
std::string authority_named(const std::string& authority);  // as the issuer of what it has signed

// When a certificate ends. Throws Error{kInvalidArgument} for what is no certificate.
std::chrono::system_clock::time_point expiry(const std::string& certificate);

// 32 random bytes, in hex.
std::string make_token();

}  // namespace muster
