#include "muster/rpc/credentials/current_credentials.h"

#include <sys/stat.h>

#include "muster/base/log.h"
#include "muster/base/status.h"

namespace muster {

CurrentCredentials::CurrentCredentials(Credentials first, CertificateUse use)
    : use_(std::move(use)), directory_(first.directory), seen_(stamp()) {
  if (!use_.task.empty() && first.tls) {
    if (const auto wrong = complaint(first)) {
      throw failed_precondition("server ", use_.task, ": its certificate",
                                directory_.empty() ? "" : str_cat(" in ", directory_), " ", *wrong);
    }
  }
  current_ = std::make_shared<const Credentials>(std::move(first));
}

CurrentCredentials::Stamp CurrentCredentials::stamp() const {
  Stamp stamp{};
  if (directory_.empty()) return stamp;
  size_t next = 0;
  for (const char* name : {"/ca.pem", "/certificate.pem", "/key.pem"}) {
    struct stat facts {};
    if (::stat((directory_ + name).c_str(), &facts) != 0) facts = {};
    stamp[next++] = static_cast<int64_t>(facts.st_ino);
    stamp[next++] = facts.st_size;
    stamp[next++] = facts.st_mtim.tv_sec;
    stamp[next++] = facts.st_mtim.tv_nsec;
  }
  return stamp;
}

std::optional<std::string> CurrentCredentials::complaint(const Credentials& credentials) const {
  const Tls& tls = *credentials.tls;
  if (auto wrong = identity_complaint({tls.certificate, tls.key}, tls.ca)) return wrong;
  return use_.task.empty() ? std::nullopt : use_complaint(tls.certificate, use_);
}

std::shared_ptr<const Credentials> CurrentCredentials::get() {
  absl::MutexLock lock(&mu_);
  if (directory_.empty() || !current_->tls) return current_;
  const Stamp now = stamp();
  if (now == seen_) return current_;
  seen_ = now;
  std::optional<std::string> wrong;
  try {
    Credentials renewed = read_credentials(directory_, /*name=*/"");
    renewed.token = current_->token;
    wrong = complaint(renewed);
    if (!wrong) {
      MUSTER_LOG(info) << (use_.task.empty() ? "client" : use_.task) << " takes the new certificate in " << directory_
                       << ", of " << subject_of(renewed.tls->certificate);
      current_ = std::make_shared<const Credentials>(std::move(renewed));
    }
  } catch (const Error& error) {
    wrong = error.status().message();
  }
  if (wrong) {
    MUSTER_LOG(warning) << (use_.task.empty() ? "client" : use_.task) << " keeps its certificate: the new one in "
                        << directory_ << " " << *wrong;
  }
  return current_;
}

}  // namespace muster
