#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/base/test_wait.h"
#include "muster/rpc/credentials/certificates.h"
#include "muster/rpc/rpc_channel.h"
#include "muster/rpc/rpc_server.h"
#include "muster/rpc/test_relay.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing_support::eventually;
using testing_support::Relay;

constexpr const char* kPs0 = "/job:ps/replica:0/task:0";
constexpr const char* kPs1 = "/job:ps/replica:0/task:1";
constexpr const char* kLook = "/muster.Test/Look";

class ChannelCredentials : public ::testing::Test {
 protected:
  struct Authority {
    Identity identity = make_authority("test authority", std::chrono::days(30));

    Credentials issue(const std::string& name, const std::string& task = "") const {
      const Identity made = make_certificate(identity, {.name = name, .use = {.task = task}});
      return {.tls = Tls{.ca = identity.certificate, .certificate = made.certificate, .key = made.key}};
    }
  };

  static std::unique_ptr<RpcServer> serve(const Credentials& credentials, const std::string& task = kPs0) {
    return std::make_unique<RpcServer>(
        RpcServerOptions{.address = "127.0.0.1:0", .task = task, .credentials = credentials},
        std::vector<RpcServer::MethodEntry>{{kLook, [](const std::shared_ptr<RpcCall>& call) { call->answer({}); }}});
  }

  // Of a call that would wait for a minute for its task to be up.
  static Status outcome(const std::string& address, const std::string& task, const Credentials& credentials) {
    RpcChannel channel(address, task, {.credentials = credentials});
    try {
      channel.call(kLook, {}, {.wait_until_up = true});
      return {};
    } catch (const Error& error) {
      return error.status();
    }
  }

  static void expect_refused(const Status& status, const testing::Matcher<std::string>& words) {
    EXPECT_EQ(status.code(), StatusCode::kUnauthenticated) << status;
    EXPECT_THAT(std::string(status.message()), words);
  }

  static void write(const fs::path& directory, const Tls& tls) {
    fs::create_directories(directory);
    std::ofstream(directory / "ca.pem") << tls.ca;
    std::ofstream(directory / "key.pem") << tls.key;
    std::ofstream(directory / "certificate.pem") << tls.certificate;
  }

  const Authority ours_{}, theirs_{};
};

TEST_F(ChannelCredentials, LetACallInThatShowsTheRightOnes) {
  auto server = serve(ours_.issue("ps-0", kPs0));

  EXPECT_TRUE(outcome(server->address(), kPs0, ours_.issue("client")).ok());
  EXPECT_TRUE(outcome(server->address(), "", ours_.issue("client")).ok()) << "by its address, which is loopback";
}

TEST_F(ChannelCredentials, ThatAreWrongFailForGoodAndSayWhatWasExpected) {
  auto server = serve(ours_.issue("ps-0", kPs0));
  LogCapture log;

  expect_refused(outcome(server->address(), kPs0, theirs_.issue("client")),
                 AllOf(HasSubstr("signed by another authority"), HasSubstr("\"ps-0\""),
                       HasSubstr(issuer_of(ours_.issue("x").tls->certificate)),
                       HasSubstr(authority_named(theirs_.identity.certificate))));
  expect_refused(outcome(server->address(), kPs0, {}), HasSubstr("this client has no credentials"));
  Credentials trusting = theirs_.issue("client");
  trusting.tls->ca += ours_.identity.certificate;
  expect_refused(outcome(server->address(), kPs0, trusting), HasSubstr("does not accept this client's"));
  auto plain = serve({});
  expect_refused(outcome(plain->address(), kPs0, ours_.issue("client")), HasSubstr("does not speak TLS"));
  for (const LogLine& line : log.lines())
    EXPECT_THAT(line.text, HasSubstr("refuses the connection")) << "of the server";
}

// Nobody waits for these calls: no thread is there to be surprised.
TEST_F(ChannelCredentials, ThatAreWrongEndACallThatWasStartedToo) {
  auto server = serve(ours_.issue("ps-0", kPs0));
  RpcChannel channel(server->address(), kPs0, {.credentials = theirs_.issue("client")});

  for (const int attempts : {1, 3}) {
    std::promise<Status> ended;
    channel.start(kLook, {}, {.attempts = attempts},
                  [&](const Status& status, const Frame&) { ended.set_value(status); });
    expect_refused(ended.get_future().get(), HasSubstr("signed by another authority"));
  }
}

TEST_F(ChannelCredentials, OfAnotherTaskAreNotTaken) {
  auto other = serve(ours_.issue("ps-1", kPs1), kPs1);

  expect_refused(outcome(other->address(), kPs0, ours_.issue("client")), HasSubstr("\"ps-1\", not of ps-0"));
  EXPECT_THROW(serve(ours_.issue("ps-1", kPs1), kPs0), Error);
  EXPECT_THROW(serve(ours_.issue("client"), kPs0), Error);
}

TEST_F(ChannelCredentials, AreRenewedAtBothEndsWithoutARestart) {
  const fs::path directory = fs::path(testing::TempDir()) / ("renewed-" + std::to_string(::getpid()));
  write(directory / "ps-0", *ours_.issue("ps-0", kPs0).tls);
  write(directory / "client", *ours_.issue("client").tls);
  auto server = serve(read_credentials(directory.string(), "ps-0"));
  Relay relay(server->address());
  RpcChannel channel(relay.address(), kPs0, {.credentials = read_credentials(directory.string(), "client")});
  EXPECT_NO_THROW(channel.call(kLook, {}, {.wait_until_up = true}));
  RpcChannel started(relay.address(), kPs0, {.credentials = read_credentials(directory.string(), "client")});
  EXPECT_NO_THROW(started.call(kLook, {}, {.wait_until_up = true}));

  write(directory / "ps-0", *theirs_.issue("ps-0", kPs0).tls);
  write(directory / "client", *theirs_.issue("client").tls);
  EXPECT_NO_THROW(channel.call(kLook, {})) << "over the connection that is there";
  LogCapture log;
  relay.cut();

  EXPECT_TRUE(eventually([&] {
    channel.call(kLook, {}, {.wait_until_up = true});
    return log.contains("client takes the new certificate");
  })) << "for a connection that needs the new ones";
  EXPECT_TRUE(eventually([&] {
    std::promise<Status> ended;
    started.start(kLook, {}, {}, [&](const Status& status, const Frame&) { ended.set_value(status); });
    return ended.get_future().get().ok();
  })) << "nobody waits for these";
  expect_refused(outcome(server->address(), kPs0, ours_.issue("client")), HasSubstr("signed by another authority"));
  fs::remove_all(directory);
}

}  // namespace
}  // namespace muster
