#include "muster/runtime/worker/lost_device.h"

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string_view>

#include "muster/base/log.h"
#include "muster/runtime/ops/op_failure.h"

namespace muster {
namespace {

std::atomic<bool> lost = false;
thread_local int refusals_expected = 0;
absl::Mutex mu(absl::kConstInit);
std::string& cause() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
  static std::string& text = *new std::string;
  return text;
}

// Those after which the context still works: it was asked for something that it refused. What a library says, such as
// CUBLAS_STATUS_NOT_SUPPORTED, may be a refusal or a loss; after a loss the next call says so in CUDA's own words.
bool is_harmless(std::string_view what) {
  for (const char* refusal :
       {"out of memory", "invalid argument", "invalid configuration", "not supported", "invalid device ordinal",
        "no kernel image", "operation not permitted", "too many resources requested", "_STATUS_"}) {
    if (what.find(refusal) != std::string_view::npos) return true;
  }
  return false;
}

}  // namespace

bool says_device_lost(const std::string& what) {
  const size_t at = what.find("CUDA error: ");
  if (at == std::string::npos || refusals_expected > 0) return false;
  const std::string why = first_line(what.substr(at));
  if (is_harmless(why)) return false;
  absl::MutexLock lock(&mu);
  if (lost.load(std::memory_order_relaxed)) return true;
  cause() = why;
  MUSTER_LOG(error) << "a GPU of this process is lost (" << why << "); it can only be used again by a new process";
  lost.store(true, std::memory_order_release);
  constexpr uint64_t kOnce = 1;
  [[maybe_unused]] const ssize_t written = ::write(lost_device_file(), &kOnce, sizeof kOnce);
  return true;
}

RefusalsExpected::RefusalsExpected() { ++refusals_expected; }
RefusalsExpected::~RefusalsExpected() { --refusals_expected; }

Status lost_device_status() {
  absl::MutexLock lock(&mu);
  return {StatusCode::kUnavailable,
          str_cat("a GPU of this process is lost (", cause(), "): the process must be started anew")};
}

int lost_device_file() {
  static const int file = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return file;
}

bool device_is_lost() { return lost.load(std::memory_order_relaxed); }

void throw_if_device_lost() {
  if (device_is_lost()) throw Error(lost_device_status());
}

}  // namespace muster
