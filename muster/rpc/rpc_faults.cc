#include "muster/rpc/rpc_faults.h"

#include "muster/base/check.h"

namespace muster {
namespace {

struct Current {
  absl::Mutex mu;
  std::shared_ptr<RpcFaults> faults ABSL_GUARDED_BY(mu);
};
Current& of_process() {
  static Current& current = *new Current;
  return current;
}

}  // namespace

void RpcFaults::set(const std::string& method, FaultRates rates) {
  absl::MutexLock lock(&mu_);
  rates_[method] = rates;
}

RpcFaults::Fate RpcFaults::draw(const std::string& method) {
  absl::MutexLock lock(&mu_);
  auto it = rates_.find(method);
  if (it == rates_.end()) it = rates_.find("");
  if (it == rates_.end()) return {};
  std::uniform_real_distribution<double> dice;
  const Fate fate{.request_lost = dice(random_) < it->second.request_lost,
                  .response_lost = dice(random_) < it->second.response_lost,
                  .in_flight = dice(random_) < it->second.in_flight};
  drawn_ += fate.request_lost + fate.response_lost + fate.in_flight;
  return fate;
}

int64_t RpcFaults::drawn() const {
  absl::MutexLock lock(&mu_);
  return drawn_;
}

ScopedRpcFaults::ScopedRpcFaults(std::shared_ptr<RpcFaults> faults) {
  absl::MutexLock lock(&of_process().mu);
  MUSTER_CHECK(!of_process().faults) << "there is one already";
  of_process().faults = std::move(faults);
}

ScopedRpcFaults::~ScopedRpcFaults() {
  absl::MutexLock lock(&of_process().mu);
  of_process().faults = nullptr;
}

std::shared_ptr<RpcFaults> ScopedRpcFaults::current() {
  absl::MutexLock lock(&of_process().mu);
  return of_process().faults;
}

}  // namespace muster
