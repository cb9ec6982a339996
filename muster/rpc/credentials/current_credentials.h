#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "muster/rpc/credentials/certificates.h"
#include "muster/rpc/credentials/credentials.h"

namespace muster {

// Credentials that may be renewed while they are used. Whoever begins a connection asks for those of now: that costs a
// look at three files, whose contents are read when they have changed. New ones that are not in order (one of two files
// was copied so far, a certificate of another task) are not taken, and a log line says so. Thread-safe.
class CurrentCredentials {
 public:
  // With `use`, of a task; without, of a client. Throws Error{kFailedPrecondition} if a task's are not in order.
  CurrentCredentials(Credentials first, CertificateUse use);

  // Another object when they have changed.
  std::shared_ptr<const Credentials> get() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Stamp = std::array<int64_t, 12>;  // of the files: which, how long, written when
  Stamp stamp() const;
  std::optional<std::string> complaint(const Credentials& credentials) const;

  const CertificateUse use_;
  const std::string directory_;
  absl::Mutex mu_;
  Stamp seen_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Credentials> current_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
