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

void Executor::Run::begin_remote(const Step& step) {
  if (step.waits) {
    // An answer that is read by the thread that waits for it comes without a change of threads.
    const AddTime waited(peers_time());
    store_arrived(step, links_.parts->run(step.number, tensors_at(step, 1), remote_options_));
    return signal(step.signals);
  }
  begin_call();
  links_.parts->start(step.number, tensors_at(step, 1), remote_options_,
                      [this, &step](const Status& status, std::vector<at::Tensor> outputs) {
                        end_call(step, status.ok() ? arrived(step, std::move(outputs)) : status);
                      });
}

void Executor::Run::begin_collective(const Step& step) {
  if (!links_.group) throw failed_precondition("there is no group number ", step.number, " at ", task_);
  const std::shared_ptr<Collectives> group = links_.group(static_cast<uint64_t>(step.number));
  if (step.waits) {
    const Waiting waiting;
    const AddTime waited(peers_time());
    store_arrived(step, group->run(step.collective, tensors_at(step, 0), remote_options_.cancellation));
    return signal(step.signals);
  }
  begin_call();
  group->start(step.collective, tensors_at(step, 0), remote_options_.cancellation,
               [this, &step](const Status& status, std::vector<at::Tensor> outputs) {
                 end_call(step, status.ok() ? arrived(step, std::move(outputs)) : status);
               });
}

void Executor::Run::begin_receive(const Step& step) {
  begin_call();
  auto done = [this, &step](const Status& status, at::Tensor value) {
    end_call(step, status.ok() ? arrived(step, {std::move(value)}) : status);
  };
  if (step.task == task_) {
    // Left here by an earlier part; if it is not there yet, only a failed step keeps us waiting.
    links_.rendezvous->receive(remote_options_.meeting, step.number, std::move(done));
  } else if (!links_.parts) {
    done(Status(StatusCode::kFailedPrecondition, str_cat("there is no cluster to receive from ", step.task)), {});
  } else {
    links_.parts->receive(step.task, remote_options_.meeting, step.number, remote_options_, std::move(done));
  }
}

void Executor::Run::send(const Step& step) {
  links_.rendezvous->send(remote_options_.meeting, step.number, needed(step, step.slots[0].value, 0), options_.owner);
}

}  // namespace muster
