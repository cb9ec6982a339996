#pragma once

#include <optional>
#include <string>

namespace muster {

// What a task shows to others and asks of them: texts in PEM.
struct Tls {
  std::string ca;           // whose certificates are trusted
  std::string certificate;  // of this task, signed by that CA
  std::string key;          // of the certificate
};

struct Credentials {
  std::optional<Tls> tls{};  // none: plain text
  std::string token{};       // checked on every call; empty: none
  // Where `tls` was read. New connections take what is there by then, if it is in order: certificates can be renewed
  // without a restart. Empty: they stay as they are.
  std::string directory{};

  bool any() const { return tls.has_value() || !token.empty(); }
};

// Reads ca.pem, certificate.pem and key.pem, and `token` if it is there, from the part `name` ("ps-0", "client") of a
// directory that `muster certs` has made, or from a copy of that part.
// Throws Error{kNotFound} that names the file.
Credentials read_credentials(const std::string& directory, const std::string& name = "client");

}  // namespace muster
