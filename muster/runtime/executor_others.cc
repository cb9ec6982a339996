// What a run does together with other tasks.
#include "muster/base/blocking.h"
#include "muster/runtime/executor_run.h"
#include "muster/runtime/op_failure.h"
#include "muster/runtime/tensors.h"

namespace muster {

void Executor::Run::store_arrived(const Step& step, std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) bring_to(step.device, tensor);
  store_all(step.results[0], std::move(tensors));
}

Status Executor::Run::arrived(const Step& step, std::vector<at::Tensor> tensors) {
  try {
    store_arrived(step, std::move(tensors));
    return {};
  } catch (...) {
    return status_of_op_failure().from(task_);
  }
}

void Executor::Run::begin_call() {
  absl::MutexLock lock(&calls_mu_);
  ++calls_;
}

void Executor::Run::end_call(const Step& step, const Status& status) {
  if (!status.ok()) fail(std::make_exception_ptr(Error(status)));
  signal(step.signals);
  absl::MutexLock lock(&calls_mu_);
  --calls_;
}

void Executor::Run::begin_remote(const Step& step, const Step::Remote& remote) {
  if (remote.waits) {
    // An answer that is read by the thread that waits for it comes without a change of threads.
    const AddTime waited(peers_time());
    store_arrived(step, links_.parts->run(remote.part, tensors_at(step, 1), remote_options_));
    return signal(step.signals);
  }
  begin_call();
  links_.parts->start(remote.part, tensors_at(step, 1), remote_options_,
                      [this, &step](const Status& status, std::vector<at::Tensor> outputs) {
                        end_call(step, status.ok() ? arrived(step, std::move(outputs)) : status);
                      });
}

void Executor::Run::begin_collective(const Step& step, const Step::Collective& collective) {
  if (!links_.group) throw failed_precondition("there is no group number ", collective.group, " at ", task_);
  const std::shared_ptr<Collectives> group = links_.group(static_cast<uint64_t>(collective.group));
  if (collective.waits) {
    const Waiting waiting;
    const AddTime waited(peers_time());
    store_arrived(step, group->run(collective.call, tensors_at(step, 0), remote_options_.cancellation));
    return signal(step.signals);
  }
  begin_call();
  group->start(collective.call, tensors_at(step, 0), remote_options_.cancellation,
               [this, &step](const Status& status, std::vector<at::Tensor> outputs) {
                 end_call(step, status.ok() ? arrived(step, std::move(outputs)) : status);
               });
}

void Executor::Run::begin_receive(const Step& step, const Step::Receive& receive) {
  begin_call();
  auto done = [this, &step](const Status& status, at::Tensor value) {
    end_call(step, status.ok() ? arrived(step, {std::move(value)}) : status);
  };
  if (receive.task == task_) {
    // Left here by an earlier part; if it is not there yet, only a failed step keeps us waiting.
    links_.rendezvous->receive(remote_options_.meeting, receive.edge, std::move(done));
  } else if (!links_.parts) {
    done(Status(StatusCode::kFailedPrecondition, str_cat("there is no cluster to receive from ", receive.task)), {});
  } else {
    links_.parts->receive(receive.task, remote_options_.meeting, receive.edge, remote_options_, std::move(done));
  }
}

void Executor::Run::send(const Step& step, const Step::Send& send) {
  links_.rendezvous->send(remote_options_.meeting, send.edge, needed(step, step.slots[0].value, 0), options_.owner);
}

}  // namespace muster
