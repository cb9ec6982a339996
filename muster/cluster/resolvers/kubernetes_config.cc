#include "muster/cluster/resolvers/kubernetes_config.h"

#include <absl/strings/escaping.h>
#include <absl/strings/strip.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <string_view>
#include <utility>

#include "muster/base/status.h"
#include "muster/cluster/read_file.h"
#include "muster/cluster/resolvers/environment_variable.h"

namespace muster {
namespace {

std::string stripped(std::string text) {
  absl::StripAsciiWhitespace(&text);
  return text;
}

// Reads one kubeconfig and says what is wrong with it.
class KubeconfigReader {
 public:
  explicit KubeconfigReader(const std::string& path) : path_(path) {
    const std::string text = read_file(path);
    try {
      root_ = YAML::Load(text);
    } catch (const YAML::Exception& error) {
      fail("not YAML: ", error.what());
    }
    if (!root_.IsMap()) fail("expected a map with clusters, users and contexts");
  }

  KubernetesConfig read(const std::optional<std::string>& wanted) const {
    const std::string name = wanted ? *wanted : text_at(root_, "", "current-context").value_or("");
    if (name.empty()) fail("current-context: missing, and no context was asked for");
    const auto [context, context_way] = named("contexts", "context", name);
    const std::string cluster_name = required(context, context_way, "cluster");
    const auto [cluster, cluster_way] = named("clusters", "cluster", cluster_name);

    KubernetesConfig config{.server = required(cluster, cluster_way, "server")};
    config.pod_namespace = text_at(context, context_way, "namespace").value_or(config.pod_namespace);
    config.ca_certificates = pem_at(cluster, cluster_way, "certificate-authority");
    if (text_at(cluster, cluster_way, "insecure-skip-tls-verify") == "true") {
      fail(cluster_way, "insecure-skip-tls-verify: a server is never trusted unseen; give its certificate-authority");
    }
    if (auto user_name = text_at(context, context_way, "user")) read_user(*user_name, config);
    return config;
  }

 private:
  template <class... Parts>
  [[noreturn]] void fail(const Parts&... parts) const {
    throw invalid_argument(path_, ": ", parts...);
  }

  void read_user(const std::string& name, KubernetesConfig& config) const {
    const auto [user, way] = named("users", "user", name);
    for (const char* plugin : {"exec", "auth-provider"}) {
      if (user[plugin]) fail(way, plugin, ": not supported; give a token, a tokenFile or a client-certificate");
    }
    config.token = text_at(user, way, "token").value_or("");
    if (auto file = text_at(user, way, "tokenFile")) config.token_file = beside(*file);
    config.client_certificate = pem_at(user, way, "client-certificate");
    config.client_key = pem_at(user, way, "client-key");
    if (config.client_certificate.empty() != config.client_key.empty()) {
      fail(way, "client-certificate and client-key: one is there without the other");
    }
  }

  // The entry of that name in a list such as `users: [{name: me, user: {…}}]`, and the way to it: "users[0].user.".
  std::pair<YAML::Node, std::string> named(const char* list, const char* key, const std::string& name) const {
    const YAML::Node entries = root_[list];
    if (entries && !entries.IsSequence()) fail(list, ": expected a list");
    for (size_t i = 0; entries && i < entries.size(); ++i) {
      const YAML::Node entry = entries[i];
      const std::string way = str_cat(list, "[", i, "].");
      if (!entry.IsMap()) fail(list, "[", i, "]: expected a map");
      if (text_at(entry, way, "name") != name) continue;
      if (!entry[key] || !entry[key].IsMap()) fail(way, key, ": expected a map");
      return {entry[key], str_cat(way, key, ".")};
    }
    fail(list, ": no entry with the name \"", name, "\"");
  }

  std::optional<std::string> text_at(const YAML::Node& map, const std::string& way, const char* key) const {
    const YAML::Node value = map[key];
    if (!value || value.IsNull()) return std::nullopt;
    if (!value.IsScalar()) fail(way, key, ": expected a text");
    return value.Scalar();
  }

  std::string required(const YAML::Node& map, const std::string& way, const char* key) const {
    auto text = text_at(map, way, key);
    if (!text || text->empty()) fail(way, key, ": missing");
    return *text;
  }

  // As "<key>-data" in base64, or as "<key>" in a file; empty if neither is there.
  std::string pem_at(const YAML::Node& map, const std::string& way, const std::string& key) const {
    const std::string data_key = key + "-data";
    if (auto data = text_at(map, way, data_key.c_str())) {
      std::string pem;
      if (!absl::Base64Unescape(stripped(*data), &pem)) fail(way, data_key, ": not base64");
      return pem;
    }
    auto file = text_at(map, way, key.c_str());
    return file ? read_file(beside(*file)) : "";
  }

  // Paths are meant from where the kubeconfig is.
  std::string beside(const std::string& file) const {
    return (std::filesystem::path(path_).parent_path() / file).string();
  }

  const std::string path_;
  YAML::Node root_;
};

}  // namespace

KubernetesConfig KubernetesConfig::in_cluster(const std::string& directory) {
  const auto host = environment_variable("KUBERNETES_SERVICE_HOST");
  const auto port = environment_variable("KUBERNETES_SERVICE_PORT");
  if (!host || !port) {
    throw failed_precondition(
        "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this process is not in a pod");
  }
  const bool is_ipv6 = host->find(':') != std::string::npos;
  KubernetesConfig config{.server = str_cat("https://", is_ipv6 ? "[" : "", *host, is_ipv6 ? "]" : "", ":", *port)};
  config.ca_certificates = read_file(directory + "/ca.crt");
  config.token_file = directory + "/token";
  config.pod_namespace = stripped(read_file(directory + "/namespace"));
  return config;
}

KubernetesConfig KubernetesConfig::from_kubeconfig(const std::string& path, const std::optional<std::string>& context) {
  return KubeconfigReader(path).read(context);
}

KubernetesConfig KubernetesConfig::automatic() {
  if (environment_variable("KUBERNETES_SERVICE_HOST")) return in_cluster();
  if (auto files = environment_variable("KUBECONFIG")) return from_kubeconfig(files->substr(0, files->find(':')));
  const auto home = environment_variable("HOME");
  if (!home) throw failed_precondition("neither KUBERNETES_SERVICE_HOST nor KUBECONFIG nor HOME is set");
  return from_kubeconfig(*home + "/.kube/config");
}

}  // namespace muster
