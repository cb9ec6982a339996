#include "muster/cluster/resolvers/kubernetes_client.h"

#include <absl/synchronization/notification.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <memory>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/cluster/resolvers/kubernetes_test_server.h"
#include "muster/cluster/test_environment.h"

namespace muster {
namespace {

using ::muster::testing_support::Authority;
using ::muster::testing_support::caught;
using ::muster::testing_support::Identity;
using ::muster::testing_support::KubernetesTestServer;
using ::muster::testing_support::ScopedDirectory;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A clock that moves only when somebody waits by it, or moves it. Thread-safe but for delays().
class FakeClock {
 public:
  KubernetesClient::Clock clock() {
    return {.now = [this] { return std::chrono::steady_clock::time_point(now_.load()); },
            .wait =
                [this](milliseconds delay) {
                  advance(delay);
                  delays_.push_back(delay);
                }};
  }
  void advance(milliseconds time) { now_ = now_.load() + time; }
  const std::vector<milliseconds>& delays() const { return delays_; }

 private:
  std::atomic<milliseconds> now_ = milliseconds(0);
  std::vector<milliseconds> delays_;
};

class KubernetesClientTest : public ::testing::Test {
 protected:
  KubernetesConfig config() const {
    return {.server = server_.url(), .ca_certificates = authority_.certificate_pem(), .token = "secret"};
  }
  KubernetesClient client() { return client(config()); }
  KubernetesClient client(const KubernetesConfig& config, const KubernetesClientOptions& options = {}) {
    return KubernetesClient(config, options, clock_.clock());
  }

  std::vector<std::string> names(const KubernetesClient& client, const std::string& selector = "app=a") const {
    std::vector<std::string> names;
    for (const Pod& pod : client.pods(selector)) names.push_back(pod.name);
    return names;
  }
  Status refusal(const KubernetesClient& client) const {
    return caught([&] { (void)client.pods("app=a"); });
  }

  const Authority authority_;
  KubernetesTestServer server_{{.identity = authority_.issue("IP:127.0.0.1,DNS:localhost")}};
  FakeClock clock_;
  LogCapture log_;
};

TEST_F(KubernetesClientTest, ListsThePodsThatASelectorSelects) {
  server_.add_pod("app=a", "a-0", "Running", "10.0.0.1");
  server_.add_pod("app=a", "a-1", "Pending", "");
  server_.add_pod("app=b", "b-0", "Running", "10.0.0.3");

  std::vector<Pod> pods = client().pods("app=a");

  ASSERT_THAT(pods, SizeIs(2));
  EXPECT_EQ(pods[0].name, "a-0");
  EXPECT_EQ(pods[0].phase, "Running");
  EXPECT_EQ(pods[0].ip, "10.0.0.1");
  EXPECT_EQ(pods[1].phase, "Pending");
  EXPECT_EQ(pods[1].ip, "");
  EXPECT_THAT(client().pods("app=none"), IsEmpty());
}

TEST_F(KubernetesClientTest, AsksInTheNamespaceWithItsToken) {
  KubernetesConfig config = this->config();
  config.pod_namespace = "research-1";
  const std::string selector = "app in (a, b),tier!=c&x=y";

  (void)client(config).pods(selector);

  ASSERT_THAT(server_.requests(), SizeIs(1));
  const httplib::Request request = server_.requests()[0];
  EXPECT_EQ(request.path, "/api/v1/namespaces/research-1/pods");
  EXPECT_EQ(request.get_param_value("labelSelector"), selector);
  EXPECT_EQ(request.get_header_value("Authorization"), "Bearer secret");
}

TEST_F(KubernetesClientTest, KeepsThePathOfTheServer) {
  KubernetesConfig config = this->config();
  config.server += "/prefix/";

  (void)client(config).pods("app=a");

  EXPECT_EQ(server_.requests()[0].path, "/prefix/api/v1/namespaces/default/pods");
}

TEST_F(KubernetesClientTest, CollectsAllPages) {
  for (int i = 0; i < 7; ++i) server_.add_pod("app=a", "a-" + std::to_string(i), "Running", "10.0.0.1");
  KubernetesClientOptions options;
  options.page_size = 3;

  EXPECT_THAT(names(client(config(), options)), ElementsAre("a-0", "a-1", "a-2", "a-3", "a-4", "a-5", "a-6"));
  EXPECT_THAT(server_.requests(), SizeIs(3));
}

TEST_F(KubernetesClientTest, BeginsAnewWhenTheListIsForgottenBetweenPages) {
  for (int i = 0; i < 3; ++i) server_.add_pod("app=a", "a-" + std::to_string(i), "Running", "10.0.0.1");
  KubernetesClientOptions options;
  options.page_size = 2;
  server_.answer_next([](const auto&, auto& response) {
    response.set_content(R"({"metadata": {"continue": "old"}, "items": [{"metadata": {"name": "gone"}}]})",
                         "application/json");
  });
  server_.answer_next(410, "The provided continue parameter is too old");

  EXPECT_THAT(names(client(config(), options)), ElementsAre("a-0", "a-1", "a-2"));
}

TEST_F(KubernetesClientTest, GivesUpWhenTheListIsForgottenForEver) {
  for (int i = 0; i < 2000; ++i) {
    server_.answer_next([](const auto&, auto& response) {
      response.set_content(R"({"metadata": {"continue": "old"}, "items": []})", "application/json");
    });
    server_.answer_next(410, "too old");
  }
  KubernetesClientOptions options;
  options.deadline = milliseconds(450);

  Status status = refusal(client(config(), options));

  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(clock_.delays(), ElementsAre(milliseconds(100), milliseconds(100), milliseconds(100), milliseconds(100)));
}

TEST_F(KubernetesClientTest, StopsAtTheDeadlineInAListWithoutEnd) {
  for (int i = 0; i < 10; ++i) {
    server_.answer_next([this](const auto&, auto& response) {
      clock_.advance(milliseconds(100));
      response.set_content(R"({"metadata": {"continue": "more"}, "items": []})", "application/json");
    });
  }
  KubernetesClientOptions options;
  options.deadline = milliseconds(450);

  EXPECT_EQ(refusal(client(config(), options)).code(), StatusCode::kUnavailable);
  EXPECT_THAT(server_.requests(), SizeIs(5));
}

TEST_F(KubernetesClientTest, ReadsItsTokenFileForEveryList) {
  ScopedDirectory directory;
  KubernetesConfig config = this->config();
  config.token_file = directory.write("token", "first\n");
  const KubernetesClient client = this->client(config);

  (void)client.pods("app=a");
  directory.write("token", "second\n");
  (void)client.pods("app=a");

  EXPECT_EQ(server_.requests()[0].get_header_value("Authorization"), "Bearer first");
  EXPECT_EQ(server_.requests()[1].get_header_value("Authorization"), "Bearer second");
}

TEST_F(KubernetesClientTest, SendsNoTokenThatWouldBreakTheHeader) {
  KubernetesConfig config = this->config();
  config.token = "a\r\nX-Evil: 1";

  EXPECT_EQ(refusal(client(config)).code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(server_.requests(), IsEmpty());
}

TEST_F(KubernetesClientTest, PassesOnWhyItWasRefused) {
  server_.answer_next(403, "pods is forbidden: User \"me\" cannot list resource \"pods\"");
  Status forbidden = refusal(client());
  server_.answer_next(401, "Unauthorized");
  Status unauthorized = refusal(client());
  server_.answer_next(400, "unable to parse requirement");
  Status bad_selector = refusal(client());
  server_.answer_next([](const auto&, auto& response) { response.set_redirect("https://elsewhere/"); });
  Status redirected = refusal(client());

  EXPECT_EQ(forbidden.code(), StatusCode::kPermissionDenied);
  EXPECT_EQ(forbidden.message(), "Kubernetes API server " + server_.url() +
                                     ": HTTP status 403: pods is forbidden: User \"me\" cannot list resource \"pods\"");
  EXPECT_EQ(unauthorized.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(unauthorized.message(), HasSubstr("Unauthorized"));
  EXPECT_EQ(bad_selector.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(redirected.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(clock_.delays(), IsEmpty()) << "there is no use in asking again";
}

TEST_F(KubernetesClientTest, AsksAgainAfterAFailureOfTheServer) {
  server_.add_pod("app=a", "a-0", "Running", "10.0.0.1");
  server_.answer_next(500, "etcd is not there");
  server_.answer_next(503, "not yet");

  EXPECT_THAT(names(client()), ElementsAre("a-0"));
  EXPECT_THAT(clock_.delays(), SizeIs(2));
  EXPECT_TRUE(log_.contains("HTTP status 500: etcd is not there, retry in"));
}

TEST_F(KubernetesClientTest, WaitsAsLongAsTheServerAsksFor) {
  server_.answer_next([](const auto&, auto& response) {
    response.status = 429;
    response.set_header("Retry-After", "7");
  });

  (void)client().pods("app=a");

  EXPECT_THAT(clock_.delays(), ElementsAre(milliseconds(7000)));
}

TEST_F(KubernetesClientTest, WaitsLongerEachTimeAndGivesUpAtTheDeadline) {
  for (int i = 0; i < 100; ++i) server_.answer_next(500, "etcd is not there");

  Status status = refusal(client());

  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), AllOf(HasSubstr(server_.url()), HasSubstr("etcd is not there"), HasSubstr("60000 ms")));
  milliseconds longest{100}, total{0};
  for (milliseconds delay : clock_.delays()) {
    EXPECT_GE(delay, longest / 2);
    EXPECT_LE(delay, longest);
    longest = std::min(longest * 2, milliseconds(5000));
    total += delay;
  }
  EXPECT_LT(total, milliseconds(60'000));
  EXPECT_GE(total, milliseconds(55'000));
}

TEST_F(KubernetesClientTest, AsksAgainWhenTheAnswerBreaksOff) {
  server_.add_pod("app=a", "a-0", "Running", "10.0.0.1");
  server_.answer_next([](const auto&, auto& response) {
    response.set_content_provider(1000, "application/json", [](size_t offset, size_t, httplib::DataSink& sink) {
      if (offset > 0) return false;  // hangs up
      return sink.write(R"({"items": [)", 11);
    });
  });
  server_.answer_next([](const auto&, auto& response) { response.set_content(R"({"items": [)", "application/json"); });

  EXPECT_THAT(names(client()), ElementsAre("a-0"));
  EXPECT_THAT(clock_.delays(), SizeIs(2));
}

std::atomic<int> sigpipes = 0;

TEST_F(KubernetesClientTest, KeepsSigpipeFromItsCaller) {
  // Whoever sends on a connection that the other side has closed gets one; here it comes while the client waits.
  server_.answer_next(500, "etcd is not there");
  KubernetesClient::Clock clock = clock_.clock();
  clock.wait = [](milliseconds) { raise(SIGPIPE); };
  const auto before = signal(SIGPIPE, [](int) { ++sigpipes; });

  (void)KubernetesClient(config(), {}, clock).pods("app=a");
  const int during = sigpipes;
  raise(SIGPIPE);
  const int after = sigpipes;
  signal(SIGPIPE, before);

  EXPECT_EQ(during, 0);
  EXPECT_EQ(after, 1) << "the caller's own signals still arrive";
}

TEST_F(KubernetesClientTest, GivesUpOnAServerThatIsSilent) {
  auto end = std::make_shared<absl::Notification>();
  for (int i = 0; i < 2; ++i) {
    server_.answer_next([end](const auto&, auto&) { end->WaitForNotification(); });
  }
  KubernetesClientOptions options;
  options.request_timeout = milliseconds(50);
  options.deadline = milliseconds(150);

  Status status = refusal(client(config(), options));
  end->Notify();

  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(server_.url()));
}

TEST_F(KubernetesClientTest, GivesUpOnAServerThatAnswersDropByDrop) {
  server_.answer_next([this](const auto&, auto& response) {
    response.set_content_provider(1'000'000, "application/json", [this](size_t, size_t, httplib::DataSink& sink) {
      clock_.advance(milliseconds(1000));
      return sink.write(" ", 1);
    });
  });

  Status status = refusal(client());

  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("takes too long"));
}

TEST_F(KubernetesClientTest, GivesUpOnAServerThatIsNotThere) {
  KubernetesConfig config = this->config();
  {
    KubernetesTestServer gone({.identity = authority_.issue("IP:127.0.0.1")});
    config.server = gone.url();
  }

  Status status = refusal(client(config));

  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(config.server));
}

TEST_F(KubernetesClientTest, RefusesAnAnswerThatIsNoListOfPods) {
  for (const char* answer : {"[]", "17", "{}", R"({"items": 3})", R"({"items": [3]})", R"({"items": [{}]})"}) {
    server_.answer_next([=](const auto&, auto& response) { response.set_content(answer, "application/json"); });
    EXPECT_EQ(refusal(client()).code(), StatusCode::kDataLoss) << answer;
  }
  server_.answer_next(
      [](const auto&, auto& response) { response.set_content(R"({"items": null})", "application/json"); });
  EXPECT_THAT(client().pods("app=a"), IsEmpty());
}

TEST_F(KubernetesClientTest, TrustsNoOtherAuthority) {
  KubernetesConfig config = this->config();
  config.ca_certificates = Authority().certificate_pem();
  Status other = refusal(client(config));
  config.ca_certificates = "";
  Status system = refusal(client(config));

  EXPECT_EQ(other.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(other.message(), AllOf(HasSubstr(server_.url()), HasSubstr("its certificate is refused")));
  EXPECT_EQ(system.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(server_.requests(), IsEmpty()) << "the token stays at home";
  EXPECT_THAT(clock_.delays(), IsEmpty());
}

TEST_F(KubernetesClientTest, TrustsNoCertificateOfAnotherHost) {
  for (const char* names : {"DNS:example.com", "IP:127.0.0.2", "DNS:localhost", "IP:7f00:1::", "DNS:127.0.0.1"}) {
    KubernetesTestServer impostor({.identity = authority_.issue(names)});
    KubernetesConfig config = this->config();
    config.server = impostor.url();

    EXPECT_EQ(refusal(client(config)).code(), StatusCode::kUnauthenticated) << names;
    EXPECT_THAT(impostor.requests(), IsEmpty());
  }
}

TEST_F(KubernetesClientTest, TrustsNoCertificateThatHasRunOut) {
  KubernetesTestServer old({.identity = authority_.issue("IP:127.0.0.1", -1)});
  KubernetesConfig config = this->config();
  config.server = old.url();

  Status status = refusal(client(config));

  EXPECT_EQ(status.code(), StatusCode::kUnauthenticated);
  EXPECT_THAT(status.message(), HasSubstr("expired"));
}

TEST_F(KubernetesClientTest, ReachesAServerByName) {
  KubernetesConfig config = this->config();
  config.server = server_.url("localhost");
  server_.add_pod("app=a", "a-0", "Running", "10.0.0.1");

  EXPECT_THAT(names(client(config)), ElementsAre("a-0"));
}

TEST_F(KubernetesClientTest, ShowsItsOwnCertificate) {
  KubernetesTestServer strict({.identity = authority_.issue("IP:127.0.0.1"), .client_authorities = authority_.store()});
  strict.add_pod("app=a", "a-0", "Running", "10.0.0.1");
  const Identity own = authority_.issue("DNS:me"), stranger = Authority("another").issue("DNS:me");
  KubernetesConfig config = this->config();
  config.server = strict.url();
  config.client_certificate = own.certificate_pem();
  config.client_key = own.key_pem();

  EXPECT_THAT(names(client(config)), ElementsAre("a-0"));

  config.client_certificate = stranger.certificate_pem();
  config.client_key = stranger.key_pem();
  EXPECT_FALSE(refusal(client(config)).ok());
}

TEST_F(KubernetesClientTest, RefusesAConfigThatCannotWork) {
  const Identity own = authority_.issue("DNS:me"), other = authority_.issue("DNS:me");
  auto complaint = [&](auto change) {
    KubernetesConfig config = this->config();
    change(config);
    return caught([&] { KubernetesClient client(config); });
  };

  for (const char* server : {"", "http://127.0.0.1:80", "127.0.0.1:443", "https://", "https://:443", "https://a:b",
                             "https://a:0", "https://a:65536", "https://user@a"}) {
    EXPECT_EQ(complaint([=](auto& config) { config.server = server; }).code(), StatusCode::kInvalidArgument) << server;
  }
  for (const char* name : {"", "a/b", "A", "a?b", ".."}) {
    EXPECT_EQ(complaint([=](auto& config) { config.pod_namespace = name; }).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(complaint([](auto& config) { config.ca_certificates = "not PEM"; }).message(), HasSubstr("authority"));
  EXPECT_THAT(complaint([](auto& config) { config.client_certificate = "not PEM"; }).message(), HasSubstr("ours"));
  EXPECT_THAT(complaint([&](auto& config) {
                config.client_certificate = own.certificate_pem();
                config.client_key = other.key_pem();
              }).message(),
              HasSubstr("our key is not that of our certificate"));
}

TEST_F(KubernetesClientTest, TakesServersWithAndWithoutAPort) {
  for (const char* server :
       {"https://a", "https://a:6443", "https://[::1]", "https://[::1]:6443/", "https://a/k8s/c"}) {
    KubernetesConfig config = this->config();
    config.server = server;
    EXPECT_TRUE(caught([&] { KubernetesClient client(config); }).ok()) << server;
  }
}

}  // namespace
}  // namespace muster
