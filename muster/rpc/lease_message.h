// Owners and leases as they travel.
#pragma once

#include "muster/rpc/frame.h"
#include "muster/runtime/worker/owner.h"

namespace muster {

proto::Owner to_proto(const Owner& owner);
Owner from_proto(const proto::Owner& owner);
proto::LeaseRequest to_proto(const Lease& lease);
Lease from_proto(const proto::LeaseRequest& request);

// The answer to a renewal, and what it says to whoever waits for it.
Frame lease_answer(const LeaseTerms& terms);
void tell(const RenewDone& done, const Status& status, const Frame& answer);

}  // namespace muster
