#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <atomic>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "muster/base/cancellation.h"
#include "muster/base/status.h"
#include "muster/runtime/executor/executor.h"
#include "muster/runtime/executor/executor_frame.h"
#include "muster/runtime/executor/plan.h"
#include "muster/runtime/executor/profile.h"
#include "muster/runtime/tuning/order_trial.h"

namespace muster {

// One run of a plan in a frame; bodies of control flow are runs of their own.
class Executor::Run {
 public:
  Run(Frame& frame, const std::string& task, const RunOptions& options, std::vector<at::Generator>& generators,
      const ExecutorLinks& links)
      : frame_(frame), plan_(frame.plan), task_(task), options_(options), generators_(generators), links_(links) {}

  // Waits for all that other parts have for this one. Before it takes a variable: a part that has one may be what they
  // wait for.
  void receive();

  // `trial`: null if nothing is to be measured. REQUIRES: receive() has returned.
  void execute(OrderTrial* trial);

 private:
  void run_lanes();

  // Other tasks take part from now on.
  void join_others();

  // Nothing that they send may arrive after the frame is used for something else.
  void await_calls();
  void leave_if_failed();
  void run_with_others();
  std::exception_ptr first_failure();

  // The first failure is the one that counts, but what was only cancelled because of another one never does. Whoever
  // waits for an event is let go and stops at its next step.
  void fail(std::exception_ptr failure);
  void run_lane(int lane);

  // False if the run has failed.
  bool take_steps(const std::vector<Step>& steps, size_t begin, size_t end, std::vector<c10::IValue>& stack);
  bool run_stretch(int lane, const Stretch& stretch, CapturedStretch& captured, std::vector<c10::IValue>& stack);
  void signal(int32_t event);
  void await(int32_t event) const;
  const std::string& op_name(const Step& step) const;
  [[noreturn]] void rethrow_with_place(const Step& step, const std::vector<c10::IValue>& stack) const;
  void perform(const Step& step, std::vector<c10::IValue>& stack);
  void call(const Step& step, const Step::Op& op, std::vector<c10::IValue>& stack);
  // Whether the factors of a product wait for the update now.
  bool leaves_factors(const Step::Op& op, std::vector<c10::IValue>& stack);
  // Adds the products whose factors wait, and returns their places in the update, in ascending order.
  std::vector<int32_t> add_products(const Step& step, const Step::Op& op);

  // Not null while the steps of a lane are recorded.
  DeviceFlags*& flags_of(int lane) { return frame_.flags[lane]; }
  void leave_to(DeviceFlags& flags, const Step& step, const Step::Op& op, std::vector<c10::IValue>& stack);

  // A value may be there without a tensor: what an op has not computed. Neither our ops nor most of libtorch's look.
  const at::Tensor& needed(const Step& step, ValueId value, int32_t position) const {
    const at::Tensor& tensor = frame_.values[value];
    if (!tensor.defined()) fail_undefined(step, position);
    return tensor;
  }
  [[noreturn]] void fail_undefined(const Step& step, int32_t position) const;
  void copy(const Step& step, const Step::Copy& copy);
  void element(const Step& step);
  TimeSpent* peers_time() const {  // not of lanes that only wait for each other
    return options_.times != nullptr && plan_.communicates ? &options_.times->peers : nullptr;
  }

  void take_next(const Step& step, const Step::Next& next);

  // ---- Other tasks: executor_others.cc
  // What comes from one is in memory of the CPU, or where it was there; here it is where its step is.
  void store_arrived(const Step& step, std::vector<at::Tensor> tensors);
  // The same for whoever has nobody to throw to.
  Status arrived(const Step& step, std::vector<at::Tensor> tensors);
  // When a call to other tasks begins, if there is a profile, and that it is over.
  Profile::Clock::time_point profile_time() const;
  void profile_call(const Step& step, Profile::Clock::time_point began) const;
  // Of a call that no thread waits for; when it began.
  Profile::Clock::time_point begin_call();
  // The last thing that touches the run: it may be gone as soon as the lock is.
  void end_call(const Step& step, Profile::Clock::time_point began, const Status& status);
  void begin_remote(const Step& step, const Step::Remote& remote);
  void begin_collective(const Step& step, const Step::Collective& collective);
  void begin_receive(const Step& step, const Step::Receive& receive);
  void send(const Step& step, const Step::Send& send);

  // ---- Control flow: executor_control.cc
  std::vector<at::Tensor> tensors_at(const Step& step, int32_t position) const;
  void store_all(const std::vector<ValueId>& values, std::vector<at::Tensor> tensors);
  template <class... Lists>
  std::vector<at::Tensor> run_body(const Step& step, int32_t index, const Lists&... lists);
  static at::Tensor trip_index(int64_t trip, at::Device device);
  // That the body is given: where its program has it.
  at::Tensor trip_argument(int32_t body, int64_t trip) const;
  void choose(const Step& step, const Step::Cond& cond);
  bool goes_on(const Step& step, const at::Tensor& more) const;
  void loop(const Step& step, const Step::Loop& loop);
  void loop_gradient(const Step& step, const Step::LoopGradient& gradient);

  Frame& frame_;
  const Plan& plan_;
  const std::string& task_;
  const RunOptions& options_;
  std::vector<at::Generator>& generators_;
  const ExecutorLinks& links_;
  OrderTrial* trial_ = nullptr;
  RunOptions remote_options_;
  std::optional<Cancellation> others_;
  absl::Mutex calls_mu_;
  int calls_ ABSL_GUARDED_BY(calls_mu_) = 0;
  uint64_t body_runs_ = 0;
  std::atomic<bool> failed_ = false;
  absl::Mutex failure_mu_;
  std::exception_ptr failure_ ABSL_GUARDED_BY(failure_mu_);
  bool failure_cancelled_ ABSL_GUARDED_BY(failure_mu_) = false;
  Cancellation::Registration outer_;  // last: it calls back
};

}  // namespace muster
