#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <map>
#include <memory>
#include <random>
#include <string>

namespace muster {

// How often a call goes wrong, each from 0 to 1.
struct FaultRates {
  double request_lost = 0;   // the other side never sees it
  double response_lost = 0;  // it was done, and nobody hears of it
  double in_flight = 0;      // it is made again while the first is still worked on
};

// Faults of the network, for tests: channels ask it about every call they make. Thread-safe.
class RpcFaults {
 public:
  explicit RpcFaults(uint64_t seed) : random_(seed) {}

  // `method` as on the wire, "/muster.Worker/Run"; "" for all that have no rates of their own.
  void set(const std::string& method, FaultRates rates) ABSL_LOCKS_EXCLUDED(mu_);

  struct Fate {
    bool request_lost = false, response_lost = false, in_flight = false;
  };
  Fate draw(const std::string& method) ABSL_LOCKS_EXCLUDED(mu_);
  int64_t drawn() const ABSL_LOCKS_EXCLUDED(mu_);  // faults so far

 private:
  mutable absl::Mutex mu_;
  std::map<std::string, FaultRates> rates_ ABSL_GUARDED_BY(mu_);
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_);
  int64_t drawn_ ABSL_GUARDED_BY(mu_) = 0;
};

// While it lives, whoever makes channels (servers, sessions, strategies) makes those that have these faults, for as
// long as they live. One at a time.
class [[nodiscard]] ScopedRpcFaults {
 public:
  explicit ScopedRpcFaults(std::shared_ptr<RpcFaults> faults);
  ~ScopedRpcFaults();
  ScopedRpcFaults(const ScopedRpcFaults&) = delete;
  ScopedRpcFaults& operator=(const ScopedRpcFaults&) = delete;

  static std::shared_ptr<RpcFaults> current();  // null: none
};

}  // namespace muster
