#include "muster/cluster/resolvers/kubernetes_cluster_resolver.h"

#include <absl/strings/escaping.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/base/status.h"
#include "muster/cluster/resolvers/kubernetes_test_server.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::Authority;
using ::muster::testing_support::caught;
using ::muster::testing_support::KubernetesTestServer;
using ::muster::testing_support::ScopedDirectory;
using ::muster::testing_support::ScopedVariable;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr const char* kDefaultSelector = "job-name=tensorflow";

class KubernetesClusterResolverTest : public ::testing::Test {
 protected:
  KubernetesClusterResolverOptions options() const {
    return {.config = KubernetesConfig{.server = server_.url(), .ca_certificates = authority_.certificate_pem()}};
  }
  Status refusal() const {
    return caught([&] { KubernetesClusterResolver(options()).cluster_spec(); });
  }

  const Authority authority_;
  KubernetesTestServer server_{{.identity = authority_.issue("IP:127.0.0.1")}};
};

// Behaviour 108.
TEST_F(KubernetesClusterResolverTest, FindsOnePodByTheDefaultLabel) {
  server_.add_pod(kDefaultSelector, "tensorflow-abc123", "Running", "10.1.2.3");

  KubernetesClusterResolver resolver(options());

  EXPECT_EQ(resolver.cluster_spec(), ClusterSpec({{"worker", {"10.1.2.3:8470"}}}));
  EXPECT_EQ(resolver.rpc_layer(), "grpc");
  EXPECT_EQ(resolver.master("worker", 0), "grpc://10.1.2.3:8470");
  EXPECT_EQ(resolver.master("worker", 0, "test"), "test://10.1.2.3:8470");
}

TEST_F(KubernetesClusterResolverTest, SortsPodsByName) {
  server_.add_pod(kDefaultSelector, "tensorflow-abc123", "Running", "10.1.2.3");
  server_.add_pod(kDefaultSelector, "tensorflow-def456", "Running", "10.1.2.4");
  server_.add_pod(kDefaultSelector, "tensorflow-999999", "Running", "10.1.2.5");

  EXPECT_EQ(KubernetesClusterResolver(options()).cluster_spec(),
            ClusterSpec({{"worker", {"10.1.2.5:8470", "10.1.2.3:8470", "10.1.2.4:8470"}}}));
}

TEST_F(KubernetesClusterResolverTest, RefusesAPodThatIsNotRunning) {
  server_.add_pod(kDefaultSelector, "tensorflow-abc123", "Failed", "10.1.2.3");

  Status status = refusal();

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "Pod \"tensorflow-abc123\" is not running; phase: \"Failed\"");
}

TEST_F(KubernetesClusterResolverTest, SaysThatItIsTooEarlyForAPodThatIsPending) {
  server_.add_pod(kDefaultSelector, "tensorflow-abc123", "Pending", "");

  Status status = refusal();

  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.message(), "Pod \"tensorflow-abc123\" is not running; phase: \"Pending\"");
}

TEST_F(KubernetesClusterResolverTest, SaysThatItIsTooEarlyForAPodWithoutAnAddress) {
  server_.add_pod(kDefaultSelector, "tensorflow-abc123", "Running", "");

  EXPECT_EQ(refusal().code(), StatusCode::kUnavailable);
}

TEST_F(KubernetesClusterResolverTest, RefusesEveryPhaseButRunning) {
  for (const char* phase : {"Succeeded", "Unknown", ""}) {
    KubernetesTestServer server({.identity = authority_.issue("IP:127.0.0.1")});
    server.add_pod(kDefaultSelector, "a", phase, "10.1.2.3");
    KubernetesClusterResolverOptions options = this->options();
    options.config->server = server.url();

    Status status = caught([&] { KubernetesClusterResolver(options).cluster_spec(); });

    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << phase;
  }
}

TEST_F(KubernetesClusterResolverTest, TakesSeveralJobsAndSelectorsInTheirOrder) {
  server_.add_pod("job-name=worker2", "b", "Running", "10.0.0.1");
  server_.add_pod("job-name=worker2", "a", "Running", "10.0.0.2");
  server_.add_pod("job-name=worker1", "z", "Running", "10.0.0.3");
  server_.add_pod("job-name=worker1", "y", "Running", "10.0.0.4");
  server_.add_pod("job-name=ps", "p", "Running", "10.0.0.5");
  KubernetesClusterResolverOptions options = this->options();
  options.selectors = {{"worker", {"job-name=worker1", "job-name=worker2"}}, {"ps", {"job-name=ps"}}};
  options.port = 2222;

  EXPECT_EQ(KubernetesClusterResolver(options).cluster_spec(),
            ClusterSpec({{"ps", {"10.0.0.5:2222"}},
                         {"worker", {"10.0.0.4:2222", "10.0.0.3:2222", "10.0.0.2:2222", "10.0.0.1:2222"}}}));
}

TEST_F(KubernetesClusterResolverTest, HasAnEmptyJobWhereNoPodIs) {
  EXPECT_EQ(KubernetesClusterResolver(options()).cluster_spec(), ClusterSpec({{"worker", {}}}));
}

TEST_F(KubernetesClusterResolverTest, PutsBracketsAroundAnIpv6Address) {
  server_.add_pod(kDefaultSelector, "a", "Running", "fd00::7");

  EXPECT_EQ(KubernetesClusterResolver(options()).cluster_spec(), ClusterSpec({{"worker", {"[fd00::7]:8470"}}}));
}

TEST_F(KubernetesClusterResolverTest, AsksAnewEveryTime) {
  KubernetesClusterResolver resolver(options());
  ClusterSpec before = resolver.cluster_spec();

  server_.add_pod(kDefaultSelector, "a", "Running", "10.0.0.1");

  EXPECT_EQ(before.num_tasks("worker"), 0);
  EXPECT_EQ(resolver.cluster_spec().num_tasks("worker"), 1);
}

TEST_F(KubernetesClusterResolverTest, KnowsItsOwnTaskFromItsOptionsOnly) {
  server_.add_pod(kDefaultSelector, "a", "Running", "10.0.0.1");
  server_.add_pod(kDefaultSelector, "b", "Running", "10.0.0.2");
  KubernetesClusterResolverOptions options = this->options();
  options.task_type = "worker";
  options.task_index = 1;
  options.environment = "cloud";
  options.devices = [](const std::string& master) -> std::vector<std::string> {
    EXPECT_EQ(master, "grpc://10.0.0.2:8470");
    return {"/job:worker/replica:0/task:1/device:GPU:0", "/job:worker/replica:0/task:0/device:GPU:0"};
  };

  KubernetesClusterResolver known(options), unknown(this->options());

  EXPECT_EQ(known.task(), (TaskId{"worker", 1}));
  EXPECT_EQ(known.environment(), "cloud");
  EXPECT_EQ(known.master(), "grpc://10.0.0.2:8470");
  EXPECT_THAT(known.num_accelerators(), ElementsAre(Pair("GPU", 1)));
  EXPECT_EQ(unknown.task(), std::nullopt);
  EXPECT_EQ(unknown.master(), "");
  EXPECT_THAT(unknown.num_accelerators(), IsEmpty());
}

TEST_F(KubernetesClusterResolverTest, PassesOnWhyTheServerRefusedIt) {
  server_.answer_next(403, "pods is forbidden");

  Status status = refusal();

  EXPECT_EQ(status.code(), StatusCode::kPermissionDenied);
  EXPECT_THAT(status.message(), HasSubstr("pods is forbidden"));
}

TEST_F(KubernetesClusterResolverTest, WorksInAPodAsItsServiceAccount) {
  ScopedDirectory directory;
  directory.write("ca.crt", authority_.certificate_pem());
  directory.write("token", "pod-token\n");
  directory.write("namespace", "research");
  ScopedVariable host("KUBERNETES_SERVICE_HOST", "127.0.0.1");
  ScopedVariable port("KUBERNETES_SERVICE_PORT", std::to_string(server_.port()));
  server_.add_pod(kDefaultSelector, "a", "Running", "10.0.0.1");

  KubernetesClusterResolver resolver({.config = KubernetesConfig::in_cluster(directory.path())});
  KubernetesClusterResolver elsewhere(
      {.config = KubernetesConfig::in_cluster(directory.path()), .pod_namespace = "other"});

  EXPECT_EQ(resolver.cluster_spec().num_tasks("worker"), 1);
  EXPECT_EQ(elsewhere.cluster_spec().num_tasks("worker"), 1);
  EXPECT_EQ(server_.requests()[0].get_header_value("Authorization"), "Bearer pod-token");
  EXPECT_EQ(server_.requests()[0].path, "/api/v1/namespaces/research/pods");
  EXPECT_EQ(server_.requests()[1].path, "/api/v1/namespaces/other/pods");
}

TEST_F(KubernetesClusterResolverTest, WorksOutsideWithAKubeconfig) {
  ScopedDirectory directory;
  const std::string ca = absl::Base64Escape(authority_.certificate_pem());
  const std::string file = directory.write("config",
                                           "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
                                           "clusters: [{name: c, cluster: {server: '" +
                                               server_.url() + "', certificate-authority-data: " + ca +
                                               "}}]\nusers: [{name: u, user: {token: mine}}]\n");
  ScopedVariable host("KUBERNETES_SERVICE_HOST"), kubeconfig("KUBECONFIG", file);
  server_.add_pod(kDefaultSelector, "a", "Running", "10.0.0.1");

  EXPECT_EQ(KubernetesClusterResolver().cluster_spec().num_tasks("worker"), 1);
  EXPECT_EQ(server_.requests()[0].get_header_value("Authorization"), "Bearer mine");
}

}  // namespace
}  // namespace muster
