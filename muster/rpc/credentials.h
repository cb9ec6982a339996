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

  bool any() const { return tls.has_value() || !token.empty(); }
};

// Reads ca.pem, <name>.pem and <name>.key, and `token` if it is there, from a directory that `muster certs` has made.
// Throws Error{kNotFound} that names the file.
Credentials read_credentials(const std::string& directory, const std::string& name);

}  // namespace muster
