#include "muster/cluster/resolvers/kubernetes_config.h"

#include <absl/strings/escaping.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::caught;
using ::muster::testing_support::ScopedDirectory;
using ::muster::testing_support::ScopedVariable;
using ::testing::HasSubstr;

constexpr const char* kKubeconfig = R"(
apiVersion: v1
kind: Config
current-context: lab
clusters:
- name: lab-cluster
  cluster:
    server: https://lab.example:6443
    certificate-authority: ca.pem
- name: cloud-cluster
  cluster:
    server: https://cloud.example
    certificate-authority-data: Q0xPVUQgQ0E=
contexts:
- name: cloud
  context: {cluster: cloud-cluster, user: robot}
- name: lab
  context: {cluster: lab-cluster, user: me, namespace: research}
- name: nobody
  context: {cluster: lab-cluster}
- name: broken
  context: {cluster: no-such-cluster}
users:
- name: me
  user:
    client-certificate-data: TVkgQ0VSVA==
    client-key: keys/me.pem
- name: robot
  user: {token: abc}
)";

class KubernetesConfigTest : public ::testing::Test {
 protected:
  KubernetesConfigTest() {
    std::filesystem::create_directory(directory_.path() + "/keys");
    directory_.write("ca.pem", "LAB CA");
    directory_.write("keys/me.pem", "MY KEY");
  }

  KubernetesConfig read(const std::string& text, const std::optional<std::string>& context = {}) const {
    return KubernetesConfig::from_kubeconfig(directory_.write("config", text), context);
  }
  std::string complaint(const std::string& text, const std::optional<std::string>& context = {}) const {
    Status status = caught([&] { (void)read(text, context); });
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(status.message(), HasSubstr(directory_.path() + "/config: "));
    return status.message();
  }
  // The same file, with another user.
  std::string with_user(const std::string& user) const {
    return "current-context: x\nclusters: [{name: c, cluster: {server: 'https://a'}}]\n"
           "contexts: [{name: x, context: {cluster: c, user: u}}]\nusers: [{name: u, user: " +
           user + "}]\n";
  }

  const ScopedDirectory directory_;
};

TEST_F(KubernetesConfigTest, ReadsTheCurrentContext) {
  KubernetesConfig config = read(kKubeconfig);

  EXPECT_EQ(config.server, "https://lab.example:6443");
  EXPECT_EQ(config.ca_certificates, "LAB CA");
  EXPECT_EQ(config.client_certificate, "MY CERT");
  EXPECT_EQ(config.client_key, "MY KEY");
  EXPECT_EQ(config.token, "");
  EXPECT_EQ(config.pod_namespace, "research");
}

TEST_F(KubernetesConfigTest, ReadsAnotherContext) {
  KubernetesConfig cloud = read(kKubeconfig, "cloud"), nobody = read(kKubeconfig, "nobody");

  EXPECT_EQ(cloud.server, "https://cloud.example");
  EXPECT_EQ(cloud.ca_certificates, "CLOUD CA");
  EXPECT_EQ(cloud.token, "abc");
  EXPECT_EQ(cloud.pod_namespace, "default");
  EXPECT_EQ(nobody.token, "");
}

TEST_F(KubernetesConfigTest, ReadsJsonToo) {
  KubernetesConfig config =
      read(R"({"current-context": "x", "clusters": [{"name": "c", "cluster": {"server": "https://a"}}],
               "contexts": [{"name": "x", "context": {"cluster": "c"}}]})");

  EXPECT_EQ(config.server, "https://a");
}

TEST_F(KubernetesConfigTest, FindsATokenFileBesideItself) {
  EXPECT_EQ(read(with_user("{tokenFile: token}")).token_file, directory_.path() + "/token");
  EXPECT_EQ(read(with_user("{tokenFile: /run/token}")).token_file, "/run/token");
}

TEST_F(KubernetesConfigTest, NamesTheKeyThatIsWrong) {
  EXPECT_THAT(complaint(kKubeconfig, "other"), HasSubstr("contexts: no entry with the name \"other\""));
  EXPECT_THAT(complaint(kKubeconfig, "broken"), HasSubstr("clusters: no entry with the name \"no-such-cluster\""));
  EXPECT_THAT(complaint("clusters: []"), HasSubstr("current-context: missing"));
  EXPECT_THAT(complaint("current-context: [a]"), HasSubstr("current-context: expected a text"));
  EXPECT_THAT(complaint("current-context: x\ncontexts: 3"), HasSubstr("contexts: expected a list"));
  EXPECT_THAT(complaint("current-context: x\ncontexts: [3]"), HasSubstr("contexts[0]: expected a map"));
  EXPECT_THAT(complaint("current-context: x\ncontexts: [{name: x}]"), HasSubstr("contexts[0].context: expected a map"));
  EXPECT_THAT(complaint("current-context: x\ncontexts: [{name: x, context: {}}]"),
              HasSubstr("contexts[0].context.cluster: missing"));
  EXPECT_THAT(complaint(with_user("3")), HasSubstr("users[0].user: expected a map"));
  EXPECT_THAT(complaint(with_user("{client-key-data: '!'}")), HasSubstr("users[0].user.client-key-data: not base64"));
  EXPECT_THAT(complaint(with_user("{client-key-data: AAAA}")), HasSubstr("one is there without the other"));
  EXPECT_THAT(complaint(with_user("{token: [a]}")), HasSubstr("users[0].user.token: expected a text"));
}

TEST_F(KubernetesConfigTest, RefusesWhatIsNoMap) {
  EXPECT_THAT(complaint("a: b: c"), HasSubstr("not YAML"));
  EXPECT_THAT(complaint("[1, 2]"), HasSubstr("expected a map"));
  EXPECT_THAT(complaint(""), HasSubstr("expected a map"));
  EXPECT_THAT(complaint(std::string(100'000, '[')), HasSubstr("not YAML"));
}

TEST_F(KubernetesConfigTest, RefusesToTrustUnseen) {
  EXPECT_THAT(complaint("current-context: x\ncontexts: [{name: x, context: {cluster: c}}]\n"
                        "clusters: [{name: c, cluster: {server: 'https://a', insecure-skip-tls-verify: true}}]"),
              HasSubstr("clusters[0].cluster.insecure-skip-tls-verify: "));
}

TEST_F(KubernetesConfigTest, RefusesCredentialsOfPlugins) {
  EXPECT_THAT(complaint(with_user("{exec: {command: aws}}")), HasSubstr("users[0].user.exec: not supported"));
  EXPECT_THAT(complaint(with_user("{auth-provider: {name: gcp}}")), HasSubstr("auth-provider: not supported"));
}

TEST_F(KubernetesConfigTest, NamesAFileThatIsMissing) {
  Status config = caught([] { (void)KubernetesConfig::from_kubeconfig("/no/such/config"); });
  Status certificate = caught([&] { (void)read(with_user("{client-certificate: no.pem, client-key: no.pem}")); });

  EXPECT_EQ(config.code(), StatusCode::kNotFound);
  EXPECT_EQ(certificate.code(), StatusCode::kNotFound);
  EXPECT_THAT(certificate.message(), HasSubstr(directory_.path() + "/no.pem"));
}

TEST_F(KubernetesConfigTest, ReadsTheServiceAccountOfAPod) {
  ScopedVariable host("KUBERNETES_SERVICE_HOST", "10.96.0.1"), port("KUBERNETES_SERVICE_PORT", "443");
  directory_.write("ca.crt", "POD CA");
  directory_.write("token", "T");
  directory_.write("namespace", "research\n");

  KubernetesConfig config = KubernetesConfig::in_cluster(directory_.path());

  EXPECT_EQ(config.server, "https://10.96.0.1:443");
  EXPECT_EQ(config.ca_certificates, "POD CA");
  EXPECT_EQ(config.token_file, directory_.path() + "/token");
  EXPECT_EQ(config.pod_namespace, "research");
}

TEST_F(KubernetesConfigTest, PutsBracketsAroundAnIpv6Service) {
  ScopedVariable host("KUBERNETES_SERVICE_HOST", "fd00::1"), port("KUBERNETES_SERVICE_PORT", "443");
  directory_.write("ca.crt", "");
  directory_.write("namespace", "a");

  EXPECT_EQ(KubernetesConfig::in_cluster(directory_.path()).server, "https://[fd00::1]:443");
}

TEST_F(KubernetesConfigTest, SaysThatItIsNotInAPod) {
  ScopedVariable host("KUBERNETES_SERVICE_HOST"), port("KUBERNETES_SERVICE_PORT");

  EXPECT_EQ(caught([&] { (void)KubernetesConfig::in_cluster(directory_.path()); }).code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(KubernetesConfigTest, LooksForAConfigWhereKubectlDoes) {
  const std::string file = directory_.write("config", with_user("{token: from-variable}"));
  std::filesystem::create_directory(directory_.path() + "/.kube");
  directory_.write(".kube/config", with_user("{token: from-home}"));
  ScopedVariable host("KUBERNETES_SERVICE_HOST"), home("HOME", directory_.path());

  ScopedVariable named("KUBECONFIG", file + ":/other");
  EXPECT_EQ(KubernetesConfig::automatic().token, "from-variable");

  ScopedVariable unnamed("KUBECONFIG");
  EXPECT_EQ(KubernetesConfig::automatic().token, "from-home");

  ScopedVariable homeless("HOME");
  EXPECT_EQ(caught([] { (void)KubernetesConfig::automatic(); }).code(), StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace muster
