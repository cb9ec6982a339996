#include "muster/rpc/master_service.h"

#include "muster/graph/serialize.h"
#include "muster/rpc/lease_message.h"
#include "muster/rpc/service_names.h"

namespace muster {
namespace {

void create(Master& master, RpcCall& call) {
  const auto request = header_of<proto::CreateSessionRequest>(call.request().envelope);
  proto::SessionAnswer answer;
  answer.set_session(
      master.create_session({.container = request.container(),
                             .isolated = request.isolated(),
                             .device_filters = {request.device_filters().begin(), request.device_filters().end()},
                             .soft_placement = request.soft_placement(),
                             .log_device_placement = request.log_device_placement(),
                             .leased = true}));
  call.answer(with_header(answer));
}

void extend(Master& master, RpcCall& call) {
  const auto request = header_of<proto::SessionRequest>(call.request().envelope);
  proto::SessionAnswer answer;
  answer.set_handle(master.extend(request.session(), parse_program(request.program())).id);
  call.answer(with_header(answer));
}

void run(Master& master, RpcCall& call) {
  const auto request = header_of<proto::RunRequest>(call.request().envelope);
  RunOptions options{.replica = request.replica(), .cancellation = &call.cancellation()};
  if (request.has_step()) options.step = request.step();
  Frame answer;
  answer.tensors = master.run(request.session(), {request.handle()}, std::move(call.request().tensors), options);
  call.answer(std::move(answer));
}

void release(Master& master, RpcCall& call) {
  const auto request = header_of<proto::SessionRequest>(call.request().envelope);
  master.release(request.session(), {request.handle()});
  call.answer({});
}

void close(Master& master, RpcCall& call) {
  master.close_session(header_of<proto::SessionRequest>(call.request().envelope).session());
  call.answer({});
}

void renew(Master& master, const std::shared_ptr<RpcCall>& call) {
  const auto request = header_of<proto::SessionRequest>(call->request().envelope);
  master.renew(request.session(), [call](const Status& status, const LeaseTerms& terms) {
    status.ok() ? call->answer(lease_answer(terms)) : call->fail(status);
  });
}

void devices(Master& master, RpcCall& call) {
  const ClusterDevices devices = master.list_devices();
  proto::DevicesAnswer answer;
  for (const std::string& device : devices.devices) answer.add_devices(device);
  for (const Status& status : devices.unreachable) *answer.add_unreachable() = to_proto(status);
  call.answer(with_header(answer));
}

void reset(Master& master, RpcCall& call) {
  const auto request = header_of<proto::ResetRequest>(call.request().envelope);
  master.reset({request.containers().begin(), request.containers().end()});
  call.answer({});
}

}  // namespace

std::vector<RpcServer::MethodEntry> master_methods(Master& master) {
  using Call = std::shared_ptr<RpcCall>;
  using Pace = RpcServer::Pace;
  return {
      {master_rpc::kCreate, [&master](const Call& call) { create(master, *call); }, true},
      {master_rpc::kExtend, [&master](const Call& call) { extend(master, *call); }, true},
      {master_rpc::kRun, [&master](const Call& call) { run(master, *call); }, true, Pace::kRun},
      {master_rpc::kRelease, [&master](const Call& call) { release(master, *call); }, true},
      {master_rpc::kRenew, [&master](const Call& call) { renew(master, call); }, false, Pace::kQuick},
      {master_rpc::kDevices, [&master](const Call& call) { devices(master, *call); }},
      {master_rpc::kReset, [&master](const Call& call) { reset(master, *call); }, true},
      {master_rpc::kClose, [&master](const Call& call) { close(master, *call); }, true},
  };
}

}  // namespace muster
