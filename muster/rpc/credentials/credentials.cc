#include "muster/rpc/credentials/credentials.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "muster/base/status.h"

namespace muster {
namespace {

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw not_found("credentials: cannot read ", path.string());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

Credentials read_credentials(const std::string& directory, const std::string& name) {
  std::filesystem::path from(directory);
  if (std::filesystem::is_directory(from / name)) from /= name;
  Credentials credentials;
  credentials.tls = Tls{.ca = read_text(from / "ca.pem"),
                        .certificate = read_text(from / "certificate.pem"),
                        .key = read_text(from / "key.pem")};
  if (std::filesystem::exists(from / "token")) {
    credentials.token = read_text(from / "token");
    while (!credentials.token.empty() && credentials.token.back() == '\n') credentials.token.pop_back();
  }
  credentials.directory = from.string();
  return credentials;
}

}  // namespace muster
