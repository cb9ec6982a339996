#include "muster/rpc/lease_message.h"

namespace muster {

proto::Owner to_proto(const Owner& owner) {
  proto::Owner made;
  made.set_id(owner.id);
  made.set_name(owner.name);
  return made;
}

Owner from_proto(const proto::Owner& owner) { return {owner.id(), owner.name()}; }

proto::LeaseRequest to_proto(const Lease& lease) {
  proto::LeaseRequest request;
  *request.mutable_owner() = to_proto(lease.owner);
  for (const std::string& container : lease.containers) request.add_containers(container);
  return request;
}

Lease from_proto(const proto::LeaseRequest& request) {
  return {from_proto(request.owner()), {request.containers().begin(), request.containers().end()}};
}

Frame lease_answer(const LeaseTerms& terms) {
  proto::LeaseAnswer answer;
  answer.set_length_ms(terms.length.count());
  answer.set_lapsed(terms.lapsed);
  return with_header(answer);
}

void tell(const RenewDone& done, const Status& status, const Frame& answer) {
  if (!status.ok()) return done(status, {});
  LeaseTerms terms;
  try {
    const auto header = header_of<proto::LeaseAnswer>(answer.envelope);
    terms = {std::chrono::milliseconds(header.length_ms()), header.lapsed()};
  } catch (const Error& error) {
    return done(error.status(), {});
  }
  done({}, terms);
}

}  // namespace muster
