#include "muster/rpc/credentials/certificates.h"

#include <gmock/gmock.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <limits>
#include <memory>

#include "muster/base/status.h"

namespace muster {
namespace {

using std::chrono::days;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Optional;

std::shared_ptr<X509> parsed(const std::string& pem) {
  const std::shared_ptr<BIO> in(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free_all);
  return {PEM_read_bio_X509(in.get(), nullptr, nullptr, nullptr), X509_free};
}

struct Asked {
  std::string host = "worker-0.muster";
  int purpose = X509_PURPOSE_SSL_SERVER;
};

// What OpenSSL says of the certificate, as the end of a connection that trusts `authority`: "ok", or what is wrong.
std::string verified(const std::string& certificate, const std::string& authority, const Asked& asked = {}) {
  const auto trusted = parsed(authority), shown = parsed(certificate);
  const std::shared_ptr<X509_STORE> store(X509_STORE_new(), X509_STORE_free);
  X509_STORE_add_cert(store.get(), trusted.get());
  const std::shared_ptr<X509_STORE_CTX> context(X509_STORE_CTX_new(), X509_STORE_CTX_free);
  X509_STORE_CTX_init(context.get(), store.get(), shown.get(), nullptr);
  X509_STORE_CTX_set_purpose(context.get(), asked.purpose);
  X509_VERIFY_PARAM* wishes = X509_STORE_CTX_get0_param(context.get());
  X509_VERIFY_PARAM_set_flags(wishes, X509_V_FLAG_X509_STRICT);
  if (X509_VERIFY_PARAM_set1_ip_asc(wishes, asked.host.c_str()) != 1) {
    X509_VERIFY_PARAM_set1_host(wishes, asked.host.c_str(), asked.host.size());
  }
  X509_verify_cert(context.get());
  return X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()));
}

const CertificateUse kWorker0{.task = "/job:worker/replica:0/task:0"}, kWorker1{.task = "/job:worker/replica:0/task:1"};

CertificateUse at_hosts(std::vector<std::string> hosts) { return {.task = kWorker0.task, .hosts = std::move(hosts)}; }

class Certificates : public ::testing::Test {
 protected:
  const Identity authority_ = make_authority("test authority", days(30));
};

TEST_F(Certificates, AreTrustedByWhoTrustsTheirAuthority) {
  const Identity task = make_certificate(authority_, {.name = "worker-0", .use = kWorker0});

  EXPECT_EQ(verified(task.certificate, authority_.certificate), "ok");
}

TEST_F(Certificates, ServeBothEndsOfAConnection) {
  const Identity task = make_certificate(authority_, {.name = "worker-0", .use = kWorker0});

  EXPECT_EQ(verified(task.certificate, authority_.certificate, {.purpose = X509_PURPOSE_SSL_SERVER}), "ok");
  EXPECT_EQ(verified(task.certificate, authority_.certificate, {.purpose = X509_PURPOSE_SSL_CLIENT}), "ok");
}

TEST_F(Certificates, AreOfOneTaskAndNoOther) {
  const Identity worker = make_certificate(authority_, {.name = "worker-0", .use = kWorker0});

  EXPECT_EQ(use_complaint(worker.certificate, kWorker0), std::nullopt);
  EXPECT_THAT(use_complaint(worker.certificate, {.task = "/job:ps/replica:0/task:0"}),
              Optional(std::string("is that of \"worker-0\", not of ps-0")));
  EXPECT_EQ(verified(worker.certificate, authority_.certificate, {.host = "ps-0.muster"}), "hostname mismatch");
  EXPECT_EQ(verified(worker.certificate, authority_.certificate, {.host = "worker-1.muster"}), "hostname mismatch");
  EXPECT_EQ(verified(worker.certificate, authority_.certificate, {.host = "muster"}), "hostname mismatch");
}

TEST_F(Certificates, OfAClientAreNoneOfAServer) {
  const Identity client = make_certificate(authority_, {.name = "ps-0"});

  EXPECT_EQ(use_complaint(client.certificate, {}), std::nullopt);
  EXPECT_THAT(use_complaint(client.certificate, {.task = "/job:ps/replica:0/task:0"}),
              Optional(std::string("is for a client, not for a task")));
  EXPECT_THAT(use_complaint(client.certificate, {.hosts = {"127.0.0.1"}}),
              Optional(std::string("is for a client, not for a task")));
  EXPECT_NE(verified(client.certificate, authority_.certificate, {.host = "ps-0.muster"}), "ok");
  const std::shared_ptr<X509> parsed_client = parsed(client.certificate);
  EXPECT_EQ(X509_check_purpose(parsed_client.get(), X509_PURPOSE_SSL_SERVER, 0), 0);
  EXPECT_EQ(X509_check_purpose(parsed_client.get(), X509_PURPOSE_SSL_CLIENT, 0), 1);
}

TEST_F(Certificates, SayWhoHasIssuedThem) {
  const Identity task = make_certificate(authority_, {.name = "worker-0", .use = kWorker0});
  const Identity other = make_certificate(make_authority("test authority", days(30)), {.name = "worker-0"});

  EXPECT_EQ(subject_of(task.certificate), "\"worker-0\"");
  EXPECT_THAT(issuer_of(task.certificate), MatchesRegex("\"test authority\" \\(key [0-9a-f]+\\)"));
  EXPECT_EQ(issuer_of(task.certificate), authority_named(authority_.certificate));
  EXPECT_NE(issuer_of(task.certificate), issuer_of(other.certificate)) << "two authorities may have one name";
  EXPECT_EQ(issuer_of("garbage"), "nobody");
}

TEST_F(Certificates, MayBeSignedByOneOfSeveralAuthorities) {
  const Identity next = make_authority("test authority", days(30));
  const Identity task = make_certificate(next, {.name = "worker-0", .use = kWorker0});

  EXPECT_EQ(identity_complaint(task, authority_.certificate + next.certificate), std::nullopt);
}

TEST_F(Certificates, NameTheHostsOfTheirTask) {
  const Identity task =
      make_certificate(authority_, {.name = "worker-0", .use = at_hosts({"worker0.example", "10.0.0.7", "fd00::7"})});

  for (const char* host :
       {"worker-0.muster", "worker0.example", "10.0.0.7", "fd00::7", "localhost", "127.0.0.1", "::1"}) {
    EXPECT_EQ(verified(task.certificate, authority_.certificate, {.host = host}), "ok") << host;
  }
  EXPECT_EQ(verified(task.certificate, authority_.certificate, {.host = "worker1.example"}), "hostname mismatch");
  EXPECT_EQ(verified(task.certificate, authority_.certificate, {.host = "10.0.0.8"}), "IP address mismatch");
}

TEST_F(Certificates, TakeAHostAsItIsAndReadNothingIntoIt) {
  const Identity task = make_certificate(authority_, {.name = "worker-0", .use = at_hosts({"a,DNS:bank.example"})});

  EXPECT_EQ(verified(task.certificate, authority_.certificate, {.host = "bank.example"}), "hostname mismatch");
}

TEST_F(Certificates, AreNotTrustedByWhoTrustsAnotherAuthorityOfTheSameName) {
  const Identity other = make_authority("test authority", days(30));

  const Identity task = make_certificate(other, {.name = "worker-0", .use = kWorker0});

  EXPECT_NE(verified(task.certificate, authority_.certificate), "ok");
  EXPECT_THAT(identity_complaint(task, authority_.certificate), Optional(HasSubstr("signed by another authority")));
}

TEST_F(Certificates, CannotSignOthers) {
  const Identity task = make_certificate(authority_, {.name = "worker-0", .use = kWorker0});

  try {
    make_certificate(task, {.name = "worker-1", .use = kWorker1});
    ADD_FAILURE() << "it signed";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(Certificates, HaveExpiredWhenMadeForLessThanNoTime) {
  const Identity task = make_certificate(authority_, {.name = "worker-0", .use = kWorker0, .valid_for = days(-1)});

  EXPECT_EQ(verified(task.certificate, authority_.certificate), "certificate has expired");
  EXPECT_THAT(identity_complaint(task, authority_.certificate), Optional(HasSubstr("has expired")));
}

TEST_F(Certificates, EndWithTheirAuthority) {
  const Identity task = make_certificate(authority_, {.name = "worker-0", .use = kWorker0, .valid_for = days(1000)});

  EXPECT_EQ(expiry(task.certificate), expiry(authority_.certificate));
}

TEST_F(Certificates, EndWhenTheyWereToldTo) {
  const Identity task = make_certificate(authority_, {.name = "worker-0", .use = kWorker0, .valid_for = days(7)});

  const auto left = expiry(task.certificate) - std::chrono::system_clock::now();
  EXPECT_LE(left, days(7));
  EXPECT_GT(left, days(7) - std::chrono::minutes(1));
}

TEST_F(Certificates, HaveDifferentNumbersAndKeys) {
  const Identity first = make_certificate(authority_, {.name = "worker-0", .use = kWorker0});
  const Identity second = make_certificate(authority_, {.name = "worker-0", .use = kWorker0});

  EXPECT_NE(first.key, second.key);
  EXPECT_NE(ASN1_INTEGER_cmp(X509_get0_serialNumber(parsed(first.certificate).get()),
                             X509_get0_serialNumber(parsed(second.certificate).get())),
            0);
}

TEST_F(Certificates, MayHaveALongName) {
  const Identity task = make_certificate(authority_, {.name = std::string(300, 'n'), .use = kWorker0});

  EXPECT_EQ(verified(task.certificate, authority_.certificate), "ok");
}

TEST_F(Certificates, CannotBeValidForever) {
  for (const days forever : {days(100'000'000), days(std::numeric_limits<int>::max())}) {
    try {
      make_certificate(authority_, {.name = "worker-0", .use = kWorker0, .valid_for = forever});
      ADD_FAILURE() << forever.count();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), StatusCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr("later than a certificate can tell"));
    }
  }
}

TEST_F(Certificates, AreNotComplainedOfWhenTheyAreInOrder) {
  const Identity task = make_certificate(authority_, {.name = "worker-0", .use = at_hosts({"worker0", "10.0.0.7"})});

  EXPECT_EQ(identity_complaint(task, authority_.certificate), std::nullopt);
  EXPECT_EQ(use_complaint(task.certificate, at_hosts({"worker0", "10.0.0.7"})), std::nullopt);
  EXPECT_EQ(identity_complaint(authority_, authority_.certificate), std::nullopt);
}

TEST_F(Certificates, AreComplainedOfForAHostThatTheyDoNotName) {
  const Identity task = make_certificate(authority_, {.name = "worker-0", .use = at_hosts({"worker0"})});

  EXPECT_THAT(use_complaint(task.certificate, at_hosts({"worker0", "worker9"})),
              Optional(std::string("does not name worker9")));
  EXPECT_THAT(use_complaint(task.certificate, at_hosts({"10.0.0.7"})), Optional(std::string("does not name 10.0.0.7")));
}

TEST_F(Certificates, AreComplainedOfForAKeyThatIsNotTheirs) {
  const Identity task = make_certificate(authority_, {.name = "worker-0", .use = kWorker0});

  for (const std::string& key : {authority_.key, std::string("no key"), std::string()}) {
    EXPECT_THAT(identity_complaint({task.certificate, key}, authority_.certificate),
                Optional(std::string("does not belong to its key")));
  }
}

TEST_F(Certificates, AreToldFromWhatIsNone) {
  EXPECT_THAT(identity_complaint({"garbage", ""}, authority_.certificate), Optional(std::string("is no certificate")));
  EXPECT_THROW(expiry("garbage"), Error);
  EXPECT_THROW(make_certificate({"garbage", authority_.key}, {.name = "worker-0", .use = kWorker0}), Error);
}

TEST(Token, IsLongAndNeverTheSame) {
  const std::string token = make_token();

  EXPECT_THAT(token, MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(token.size(), 64u);
  EXPECT_NE(token, make_token());
}

}  // namespace
}  // namespace muster
