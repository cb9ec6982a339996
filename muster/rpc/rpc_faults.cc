#include "muster/rpc/rpc_faults.h"

namespace muster {

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

}  // namespace muster
