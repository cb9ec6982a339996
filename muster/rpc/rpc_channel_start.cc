// The calls of a channel whose answers nobody waits for.
#include <grpcpp/alarm.h>

#include <algorithm>

#include "muster/base/blocking.h"
#include "muster/rpc/rpc_channel_core.h"

namespace muster {

void RpcChannel::Core::start(const std::string& method, Frame request, const CallOptions& options, Done done) {
  auto outgoing = std::shared_ptr<Outgoing>(new Outgoing(pack(std::move(request), options)));
  begin(std::make_shared<Pending>(Pending{.core = shared_from_this(),
                                          .method = method,
                                          .request = std::move(outgoing),
                                          .deadline = deadline_of(options),
                                          .cancellation = options.cancellation,
                                          .done = std::move(done),
                                          .attempts = options.attempts.value_or(options_.attempts),
                                          .patient = options.patient && !options.timeout,
                                          .kept_tensors = options.kept_tensors}));
}

// Faults of tests are those of a network, and what is sent apart follows a message of gRPC. Whether a task is there is
// known by gRPC's connection alone.
std::shared_ptr<NearWire> RpcChannel::Core::wire_for(const Outgoing& request, bool patient) {
  const bool fits = request.lent.message.Length() <= kMostOnNearWire && !request.lent.parcel;
  return patient && fits && request.near && !options_.faults && connected() ? wires_.take() : nullptr;
}

void RpcChannel::Core::begin(const std::shared_ptr<Pending>& pending) {
  Pending& call = *pending;
  call.reader.reset();
  call.answer.Clear();
  if (call.attempt == 1 && begin_on_wire(pending)) return;
  if (call.request->lent.parcel && call.attempt > 1) call.request->repack();
  call.context = make_context(call.deadline, *call.request, call.attempt > 1);
  if (call.cancellation != nullptr) {
    call.registration = call.cancellation->on_cancel(
        [core = call.core, number = call.request->number.number(), context = call.context.get()](const Status&) {
          context->TryCancel();
          core->tell_cancelled(number);
        });
  }
  call.fate = fate_of(call.method, call.request->lent.message, call.deadline);
  if (!call.fate.request_lost)
    return call.send(wire_.stub(), [pending] { pending->core->ended(pending, pending->status); });
  auto alarm = std::make_shared<grpc::Alarm>();
  AnswerThreads& threads = AnswerThreads::instance();
  alarm->Set(&threads.queue(), gpr_now(GPR_CLOCK_MONOTONIC),
             threads.when_done([alarm, pending] { pending->core->ended(pending, kLost); }));
}

bool RpcChannel::Core::begin_on_wire(const std::shared_ptr<Pending>& pending) {
  Pending& call = *pending;
  const std::shared_ptr<NearWire> wire = wire_for(*call.request, call.patient);
  if (!wire) return false;
  if (call.cancellation != nullptr) {
    call.registration =
        call.cancellation->on_cancel([core = call.core, number = call.request->number.number(), wire](const Status&) {
          wire->break_off();
          core->tell_cancelled(number);
        });
  }
  auto received = [pending, wire](NearWire::Answer answer) {
    Pending& of = *pending;
    of.registration.reset();  // the wire is another call's from here on
    const bool given_up = of.cancellation != nullptr && of.cancellation->cancelled();
    of.core->wires_.give_back(wire, given_up ? nullptr : &answer);
    if (given_up) answer.status = grpc::Status::CANCELLED;
    of.answer = std::move(answer.message);
    if (!answer.elsewhere || given_up) return of.core->ended(pending, answer.status);
    ++of.attempt;
    of.core->begin(pending);
  };
  auto alive = [core = call.core] { return core->connected(); };
  if (NearWireAnswers::instance().start(wire, call.method, call.request->lent.message, alive, received)) return true;
  call.registration.reset();
  wires_.give_back(wire, nullptr);
  return false;
}

void RpcChannel::Core::ended(const std::shared_ptr<Pending>& pending, const grpc::Status& result) {
  Pending& call = *pending;
  call.registration.reset();
  const grpc::Status& status = call.fate.response_lost && result.ok() ? kLost : result;
  if (!status.ok()) {
    if (call.request->lent.parcel) call.request->lent.parcel->break_off();
    const Status why = explain(status, call.cancellation);
    const bool cancelled = call.cancellation != nullptr && call.cancellation->cancelled();
    if (why.code() != StatusCode::kUnavailable || cancelled) return call.end(why, {});
    if (call.attempt >= call.attempts) return end_unreached(pending, why);
    ++call.attempt;
    return begin_again(pending, why);
  }
  wire_.answered();
  meet_task(*call.request);
  if (call.answer.Length() > kLongCopy) about_to_block();  // others are received while it is copied
  if (!comes_with_parcel(call.answer)) return take_answer(pending);
  AnswerThreads::instance().run_slow([this, pending] { take_answer(pending); });
}

void RpcChannel::Core::take_answer(const std::shared_ptr<Pending>& pending) {
  Pending& call = *pending;
  Status outcome;
  Frame frame;
  try {
    frame = open(call.answer, *call.request, call.deadline, call.cancellation);
    give_back(call.request->number, frame, call.kept_tensors);
  } catch (const LoanLost&) {
    call.request->repack();
    return begin(pending);
  } catch (...) {
    outcome = status_of(std::current_exception());
  }
  call.end(outcome, std::move(frame));
}

// As wait_until_connected, without a thread.
void RpcChannel::Core::begin_again(const std::shared_ptr<Pending>& pending, const Status& why) {
  const bool lost_by_test = pending->fate.request_lost || pending->fate.response_lost;
  if (!connected() || lost_by_test) return begin_after_loss(pending, why);
  AnswerThreads& threads = AnswerThreads::instance();
  wire_.channel().NotifyOnStateChange(
      GRPC_CHANNEL_READY, grpc_time(Clock::now() + kLossIsKnown), &threads.queue(),
      threads.when_done([pending, why] { pending->core->begin_after_loss(pending, why); }));
}

void RpcChannel::Core::begin_after_loss(const std::shared_ptr<Pending>& pending, const Status& why) {
  pending->patience = Clock::now() + options_.reconnect;
  pending->refused = wire_.channel().GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_TRANSIENT_FAILURE;
  if (pending->refused) {
    grpc::experimental::ChannelResetConnectionBackoff(&wire_.channel());
    pending->patience = std::min(pending->patience, Clock::now() + kRefused);
  }
  begin_when_connected(pending, why);
}

void RpcChannel::Core::begin_when_connected(const std::shared_ptr<Pending>& pending, const Status& why) {
  const grpc_connectivity_state state = wire_.channel().GetState(/*try_to_connect=*/true);
  if (state == GRPC_CHANNEL_READY) return begin(pending);
  if (Clock::now() >= pending->patience || (state == GRPC_CHANNEL_TRANSIENT_FAILURE && !pending->refused))
    return end_unreached(pending, why);
  AnswerThreads& threads = AnswerThreads::instance();
  wire_.channel().NotifyOnStateChange(
      state, grpc_time(pending->patience), &threads.queue(),
      threads.when_done([pending, why] { pending->core->begin_when_connected(pending, why); }));
}

void RpcChannel::Core::end_unreached(const std::shared_ptr<Pending>& pending, const Status& why) {
  if (connected()) return pending->end(why, {});
  if (pending->attempts <= 1) connect_again_soon();
  if (!pending->renewed && wire_.renew()) {
    pending->renewed = true;
    return begin(pending);
  }
  // Who was let in with what is shown now is not refused for it, and a lost task is to cost no more than that.
  if (wire_.accepted() || wire_.just_asked()) return pending->end(why, {});
  AnswerThreads::instance().run_slow([pending, why] { pending->end(pending->core->refusal_or(why), {}); });
}

}  // namespace muster
