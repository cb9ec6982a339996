#include "muster/rpc/credentials/current_credentials.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "muster/base/log.h"
#include "muster/base/status.h"

namespace muster {
namespace {

namespace fs = std::filesystem;
using std::chrono::days;
using ::testing::HasSubstr;

class CredentialsOfNow : public ::testing::Test {
 protected:
  CredentialsOfNow() {
    fs::create_directories(directory_);
    write("ca.pem", authority_.certificate);
    renew();
  }
  ~CredentialsOfNow() override { fs::remove_all(directory_); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ / (name + ".new")) << text;
    fs::rename(directory_ / (name + ".new"), directory_ / name);
  }
  Identity issue(const CertificateUse& use) const { return make_certificate(authority_, {.name = "it", .use = use}); }
  Identity renew() const {
    const Identity made = issue(kUse);
    write("key.pem", made.key);
    write("certificate.pem", made.certificate);
    return made;
  }
  Credentials read() const { return read_credentials(directory_.string(), "worker-0"); }

  const CertificateUse kUse{.task = "/job:worker/replica:0/task:0"};
  const fs::path directory_ = fs::path(testing::TempDir()) / ("credentials-" + std::to_string(::getpid()));
  const Identity authority_ = make_authority("test authority", days(30));
};

TEST_F(CredentialsOfNow, AreThoseThatWereReadUntilTheyAreRenewed) {
  CurrentCredentials current(read(), kUse);
  const auto first = current.get();
  EXPECT_EQ(current.get(), first);

  const Identity renewed = renew();

  EXPECT_EQ(current.get()->tls->certificate, renewed.certificate);
  EXPECT_EQ(current.get()->tls->key, renewed.key);
}

TEST_F(CredentialsOfNow, StayWhileTheNewOnesAreNotThereAsAWhole) {
  CurrentCredentials current(read(), kUse);
  const auto first = current.get();
  const Identity next = issue(kUse);

  LogCapture log;
  write("key.pem", next.key);
  EXPECT_EQ(current.get(), first);
  EXPECT_EQ(current.get(), first);
  EXPECT_TRUE(log.contains("does not belong to its key"));
  EXPECT_EQ(log.lines().size(), 1u) << "said once";
  write("certificate.pem", next.certificate);

  EXPECT_EQ(current.get()->tls->certificate, next.certificate);
}

TEST_F(CredentialsOfNow, AreNeverThoseOfAnotherTask) {
  CurrentCredentials current(read(), kUse);
  const auto first = current.get();
  const Identity other = issue({.task = "/job:ps/replica:0/task:0"});

  LogCapture log;
  write("key.pem", other.key);
  write("certificate.pem", other.certificate);

  EXPECT_EQ(current.get(), first);
  EXPECT_TRUE(log.contains("not of worker-0"));
}

TEST_F(CredentialsOfNow, OfATaskMustBeInOrderFromTheBeginning) {
  try {
    CurrentCredentials(read(), {.task = "/job:ps/replica:0/task:0"});
    ADD_FAILURE() << "taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), StatusCode::kFailedPrecondition);
    EXPECT_THAT(error.what(), HasSubstr("/job:ps/replica:0/task:0"));
    EXPECT_THAT(error.what(), HasSubstr("not of ps-0"));
  }
}

TEST_F(CredentialsOfNow, AreReadFromThePartThatIsNamedOrFromACopyOfIt) {
  const fs::path whole = directory_ / "whole";
  fs::create_directories(whole);
  for (const char* name : {"ca.pem", "certificate.pem", "key.pem"}) {
    fs::create_directories(whole / "worker-0");
    fs::copy(directory_ / name, whole / "worker-0" / name);
  }

  EXPECT_EQ(read_credentials(whole.string(), "worker-0").tls->certificate, read().tls->certificate);
  EXPECT_THROW(read_credentials(whole.string(), "worker-1"), Error);
}

}  // namespace
}  // namespace muster
