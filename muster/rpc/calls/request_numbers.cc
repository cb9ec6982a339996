#include "muster/rpc/calls/request_numbers.h"

#include <algorithm>

#include "muster/runtime/worker/run_options.h"

namespace muster {

RequestId request_id_of(const proto::Envelope& envelope) {
  return {{envelope.client_high(), envelope.client_low()}, envelope.request()};
}

void set_request_id(proto::Envelope& envelope, const RequestId& id) {
  envelope.set_client_high(id.client.high);
  envelope.set_client_low(id.client.low);
  envelope.set_request(id.number);
}

RequestNumbers::RequestNumbers() : client_{random_id(), random_id()} {}

RequestNumbers::Taken RequestNumbers::take(proto::Envelope& request) {
  absl::MutexLock lock(&mu_);
  const uint64_t number = ++last_;
  set_request_id(request, {client_, number});
  for (uint64_t wanted : wanted_) request.add_wanted(number - wanted);
  wanted_.push_back(number);
  return {*this, number};
}

void RequestNumbers::give_back(uint64_t number) {
  absl::MutexLock lock(&mu_);
  wanted_.erase(std::lower_bound(wanted_.begin(), wanted_.end(), number));
}

}  // namespace muster
