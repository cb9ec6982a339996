// What a run does together with other tasks.
#include "muster/base/blocking.h"
#include "muster/runtime/executor/executor_run.h"
#include "muster/runtime/memory/tensors.h"
#include "muster/runtime/ops/op_failure.h"

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

Profile::Clock::time_point Executor::Run::profile_time() const {
  return options_.profile == nullptr ? Profile::Clock::time_point{} : Profile::Clock::now();
}

void Executor::Run::profile_call(const Step& step, Profile::Clock::time_point began) const {
  if (options_.profile == nullptr) return;
  const auto* collective = step.as<Step::Collective>();
  options_.profile->add({collective != nullptr ? collective->call.to_string() : op_name(step), Profile::kOtherTasks,
                         began, Profile::Clock::now()});
}

Profile::Clock::time_point Executor::Run::begin_call() {
  absl::MutexLock lock(&calls_mu_);
  ++calls_;
  return profile_time();
}

void Executor::Run::end_call(const Step& step, Profile::Clock::time_point began, const Status& status) {
  profile_call(step, began);
  if (!status.ok()) fail(std::make_exception_ptr(Error(status)));
  signal(step.signals);
  absl::MutexLock lock(&calls_mu_);
  --calls_;
}

void Executor::Run::begin_remote(const Step& step, const Step::Remote& remote) {
  if (remote.waits) {
    // An answer that is read by the thread that waits for it comes without a change of threads.
    const AddTime waited(peers_time());
    const auto began = profile_time();
    store_arrived(step, links_.parts->run(remote.part, tensors_at(step, 1), remote_options_));
    profile_call(step, began);
    return signal(step.signals);
  }
  std::vector<at::Tensor> inputs = tensors_at(step, 1);
  links_.parts->start(remote.part, std::move(inputs), remote_options_,
                      [this, &step, began = begin_call()](const Status& status, std::vector<at::Tensor> outputs) {
                        end_call(step, began, status.ok() ? arrived(step, std::move(outputs)) : status);
                      });
}

void Executor::Run::begin_collective(const Step& step, const Step::Collective& collective) {
  if (!links_.group) throw failed_precondition("there is no group number ", collective.group, " at ", task_);
  const std::shared_ptr<Collectives> group = links_.group(static_cast<uint64_t>(collective.group));
  if (collective.waits) {
    const Waiting waiting;
    const AddTime waited(peers_time());
    const auto began = profile_time();
    store_arrived(step, group->run(collective.call, tensors_at(step, 0), remote_options_.cancellation));
    profile_call(step, began);
    return signal(step.signals);
  }
  std::vector<at::Tensor> values = tensors_at(step, 0);
  for (const ValueId value : step.kills) frame_.values[value].reset();  // so that the group need not copy it
  group->start(collective.call, std::move(values), remote_options_.cancellation,
               [this, &step, began = begin_call()](const Status& status, std::vector<at::Tensor> outputs) {
                 end_call(step, began, status.ok() ? arrived(step, std::move(outputs)) : status);
               });
}

void Executor::Run::begin_receive(const Step& step, const Step::Receive& receive) {
  auto done = [this, &step, began = begin_call()](const Status& status, at::Tensor value) {
    end_call(step, began, status.ok() ? arrived(step, {std::move(value)}) : status);
  };
  if (receive.task == task_) {
    // Left here by an earlier part; if it is not there yet, only a failed step keeps us waiting.
    links_.rendezvous->receive(remote_options_.meeting, receive.edge, std::move(done));
  } else if (!links_.parts) {
    done(Status(StatusCode::kFailedPrecondition, str_cat("there is no cluster to receive from ", receive.task)), {});
  } else {
    RunOptions options = remote_options_;
    options.form = receive.form;
    links_.parts->receive(receive.task, options.meeting, receive.edge, options, std::move(done));
  }
}

void Executor::Run::send(const Step& step, const Step::Send& send) {
  links_.rendezvous->send(remote_options_.meeting, send.edge, needed(step, step.slots[0].value, 0), options_.owner);
}

}  // namespace muster
