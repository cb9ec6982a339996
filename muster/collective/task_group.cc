#include "muster/collective/task_group.h"

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_join.h>
#include <c10/core/GradMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <deque>
#include <future>
#include <optional>
#include <thread>

#include "muster/base/deadline_timer.h"
#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/collective/collective_run.h"
#include "muster/collective/wire_posts.h"
#include "muster/near/near_post.h"
#include "muster/runtime/ops/operands.h"

namespace muster {
namespace {

using GroupClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookAfter{2'000};  // at those that are waited for: are they still who they were?
// While the group is formed, a rank that was just started anew is no rare sight. For each rank, since all ask all.
constexpr std::chrono::milliseconds kLookPerRank{25};
constexpr std::chrono::milliseconds kFetchedWithin{10'000};
constexpr std::chrono::milliseconds kHeardWithin{200};
constexpr std::chrono::milliseconds kReadEvery{5};
constexpr int64_t kNoEdge = -1;  // of a call

// Everything that one task leaves for another in one call has a number of its own.
int64_t edge_of(uint64_t call, int64_t what, int to) {
  constexpr uint64_t kCalls = (uint64_t{1} << 29) - 1, kParts = 1 << 18, kRanks = 1 << 16;
  if (static_cast<uint64_t>(what) >= kParts)
    throw invalid_argument("a collective of more than 128 GiB a task; send less");
  return static_cast<int64_t>(((call & kCalls) * kParts + static_cast<uint64_t>(what)) * kRanks +
                              static_cast<uint64_t>(to));
}

// Whoever fails puts its name before what it says; whoever hears of it says the same.
bool names_a_rank(const Status& status) { return status.message().starts_with("rank "); }

// A peer that takes this rank for gone cancels what this one asks it for. It was out of reach, and may be back.
StatusCode code_of_peer(StatusCode code) { return code == StatusCode::kCancelled ? StatusCode::kUnavailable : code; }

}  // namespace

// The questions of one call and their answers. Shared: an answer may come when nobody waits for it any more.
class CollectiveRun : public Mail, public MemoryOfOthers {
 public:
  // Asks for the first messages at once: whoever comes to the call later finds the question there, and whoever is there
  // already has sent them.
  CollectiveRun(TaskGroup& group, uint64_t number)
      : group_(group), number_(number), first_(static_cast<size_t>(group.size())) {
    for (int from = 0; from < size(); ++from) {
      if (from != rank()) first_[from] = ask(from, kFirstMessage, {});
    }
  }
  ~CollectiveRun() override {
    if (!kept_.empty()) group_.keep(std::move(kept_));
    given_up_.reset();
    answers_->cancellation.cancel(Status(StatusCode::kCancelled, "the collective has ended"));
  }

  uint64_t number() const { return number_; }
  void begin(const Cancellation* cancellation) {
    const bool formed = group_.formed();
    timeout_ = formed ? group_.options_.timeout : group_.options_.start_timeout;
    deadline_ = GroupClock::now() + timeout_;
    if (!formed) look_after_ = std::min(kLookAfter, size() * kLookPerRank);
    next_look_ = GroupClock::now() + look_after_;
    if (cancellation == nullptr) return;
    cancellation->throw_if_cancelled();
    given_up_ = cancellation->on_cancel([this](const Status& why) {
      answers_->fail(why);
      group_.wake_posts();
    });
  }

  // Of calls of GPUs: which of them it is.
  std::optional<uint64_t> gpu_turn{};
  // For who waits for something else than an answer. Throws Error if there is nothing to wait for any more.
  void look() {
    throw_if_failed();
    const auto now = GroupClock::now();
    if (now >= deadline_)
      throw deadline_exceeded("call ", number_, " of the group was not over within ", TaskGroup::in_words(timeout_));
    if (now < next_look_) return;
    check_all_alive();
    next_look_ = GroupClock::now() + look_after_;
  }

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::string name_of(int rank) const override { return group_.described(rank); }

  bool send(int to, int64_t what, const at::Tensor& tensor) override {
    NearPost* post = group_.posts_[to].get();
    const bool wire = by_wire(to, what);
    if (post == nullptr && !wire) return false;
    bool of_this_one = false;  // what is thrown
    auto next_look = GroupClock::now() + look_after_;
    const auto look_around = [&] {
      // Whoever does not read this rank's letters may be stuck in turn with what it sends by wire.
      if (!wire && group_.wire_) group_.wire_->read_now();
      {
        absl::MutexLock lock(&answers_->mu);
        of_this_one = !answers_->failure.ok();
        if (of_this_one) throw_failure();
      }
      if (GroupClock::now() < next_look) return;
      check_alive(to);
      next_look = GroupClock::now() + look_after_;
    };
    const int64_t edge = edge_of(number_, what, to);
    try {
      if (!wire) return post->send(edge, tensor, deadline_, look_around);
      group_.wire_->send(to, edge, tensor, deadline_, look_around);
      return true;
    } catch (const Error& error) {
      if (of_this_one) throw;
      throw of_rank(to, error.status());
    }
  }

  void leave(int to, int64_t what, at::Tensor tensor) override {
    group_.here_.send(group_.generation_, edge_of(number_, what, to), std::move(tensor));
  }

  size_t ask(int from, int64_t what, at::Tensor into) override {
    const bool wire = by_wire(from, what);
    size_t question = 0;
    {
      absl::MutexLock lock(&answers_->mu);
      question = answers_->slots.size();
      answers_->slots.push_back({.from = from, .edge = edge_of(number_, what, rank()), .by_wire = wire});
    }
    if (wire && into.defined()) group_.wire_->expect(from, edge_of(number_, what, rank()), std::move(into));
    // They send it, or say that it is to be asked for.
    if (group_.posts_[from] || wire) return question;
    group_.workers_[from]->receive(group_.generation_, edge_of(number_, what, rank()),
                                   {.cancellation = &answers_->cancellation},
                                   [answers = answers_, question](const Status& status, at::Tensor tensor) {
                                     absl::MutexLock lock(&answers->mu);
                                     Slot& slot = answers->slots[question];
                                     if (status.ok()) {
                                       slot.tensor = std::move(tensor);
                                     } else if (answers->failure.ok()) {
                                       answers->failure = status;
                                       answers->failed_at = slot.from;
                                     }
                                     answers->changed.signal_all();
                                   });
    return question;
  }

  size_t first_question(int from) override { return first_[from]; }

  MemoryOfOthers* memory() override { return group_.near_way_ == NearWay::kReading ? this : nullptr; }
  void read(int from, uint64_t there, const at::Tensor& into) override {
    throw_if_failed();
    NearPost& post = *group_.posts_[from];
    if (into.nbytes() == 0 || post.read_memory({{into.mutable_data_ptr(), there, into.nbytes()}})) return;
    try {
      // Whoever fails lets go of its memory, and says why.
      post.take(kNoEdge, GroupClock::now() + kHeardWithin);
    } catch (const Error& error) {
      throw of_rank(from, error.status());
    }
    throw_if_failed();  // cancelled meanwhile: that has ended the wait
    throw of_rank(
        from, unavailable("does not have what it has said is in its memory, or this process may not read it").status());
  }
  void check_none_has_failed() override {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank == this->rank()) continue;
      try {
        group_.posts_[rank]->check();
      } catch (const Error& error) {
        throw of_rank(rank, error.status());
      }
    }
  }
  void keep(const std::vector<at::Tensor>& given, const std::vector<at::Tensor>& made) override {
    kept_ = given;
    kept_.insert(kept_.end(), made.begin(), made.end());
  }
  void let_go() override { kept_.clear(); }

  at::Tensor wait(size_t question) override {
    auto look = GroupClock::now() + look_after_;
    while (true) {
      int from = 0;
      int64_t edge = 0;
      bool wire = false;
      {
        absl::MutexLock lock(&answers_->mu);
        const Slot& slot = answers_->slots[question];
        if (!answers_->failure.ok() && !slot.tensor.defined()) throw_failure();
        from = slot.from;
        edge = slot.edge;
        wire = slot.by_wire;
      }
      if (std::optional<at::Tensor> tensor = take(question, from, edge, wire, std::min(look, deadline_))) {
        return *std::move(tensor);
      }
      if (GroupClock::now() >= deadline_) {
        throw of_rank(from, Status(StatusCode::kDeadlineExceeded,
                                   str_cat("did not come to call ", number_, " of the group within ",
                                           TaskGroup::in_words(timeout_))));
      }
      if (GroupClock::now() < look) continue;
      check_those_waited_for(from);
      look = GroupClock::now() + look_after_;
    }
  }

 private:
  struct Slot {
    int from = 0;
    int64_t edge = 0;
    bool by_wire = false;
    at::Tensor tensor{};
  };
  struct Answers {
    absl::Mutex mu;
    SteadyCondVar changed;
    std::deque<Slot> slots ABSL_GUARDED_BY(mu);
    Status failure ABSL_GUARDED_BY(mu);
    int failed_at ABSL_GUARDED_BY(mu) = -1;  // -1: here
    Cancellation cancellation;

    void fail(const Status& why) {
      absl::MutexLock lock(&mu);
      if (failure.ok()) failure = why;
      changed.signal_all();
    }
  };

  // The same at both ends.
  bool by_wire(int rank, int64_t what) const {
    if (group_.wire_ == nullptr || !group_.wire_->has(rank)) return false;
    return group_.posts_[rank] == nullptr || (group_.near_way_ == NearWay::kWire && what != kFirstMessage);
  }

  std::optional<at::Tensor> take(size_t question, int from, int64_t edge, bool wire, GroupClock::time_point until) {
    NearPost* post = group_.posts_[from].get();
    try {
      if (wire) return group_.wire_->take(from, edge, until);
      if (post != nullptr && group_.wire_ == nullptr) return post->take(edge, until);
      // Whoever this one waits for may wait for one that waits until this one reads.
      if (group_.wire_ != nullptr) {
        group_.wire_->read_now();
        until = std::min(until, GroupClock::now() + kReadEvery);
      }
      return post != nullptr ? post->take(edge, until) : take(question, until);
    } catch (const Error& error) {
      throw of_rank(from, error.status());
    }
  }

  std::optional<at::Tensor> take(size_t question, GroupClock::time_point until) {
    absl::MutexLock lock(&answers_->mu);
    Slot& slot = answers_->slots[question];
    while (!slot.tensor.defined() && answers_->failure.ok() && GroupClock::now() < until) {
      answers_->changed.wait_for(answers_->mu, absl::FromChrono(until - GroupClock::now()));
    }
    return slot.tensor.defined() ? std::optional(std::move(slot.tensor)) : std::nullopt;
  }

  // What it says itself, or what is said of it.
  Error of_rank(int rank, const Status& status) const {
    const Status begun = status.from(group_.options_.tasks[rank]);
    if (names_a_rank(status)) return Error(begun);
    return Error(Status(status.code(), str_cat(name_of(rank), " ", status.message()), begun.task()));
  }

  void throw_if_failed() {
    absl::MutexLock lock(&answers_->mu);
    if (!answers_->failure.ok()) throw_failure();
  }
  [[noreturn]] void throw_failure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(answers_->mu) {
    const Status why = answers_->failure;
    if (answers_->failed_at < 0) throw Error(why);
    throw Error(Status(code_of_peer(why.code()),
                       names_a_rank(why) ? why.message() : str_cat(name_of(answers_->failed_at), ": ", why.message()),
                       why.from(group_.options_.tasks[answers_->failed_at]).task()));
  }

  // Of a group that is formed, whoever waits for one that was started anew fails it for all. Until then, ranks that
  // have seen different processes are of different generations and wait for each other: each looks at all.
  void check_those_waited_for(int from) {
    if (group_.formed()) return check_alive(from);
    check_all_alive();
  }
  void check_all_alive() {
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != group_.rank()) check_alive(rank);
    }
  }

  // A process that was started anew knows nothing of this call, and would be waited for in vain.
  void check_alive(int rank) {
    WorkerStatus status;
    try {
      status = group_.workers_[rank]->status();
    } catch (const Error& error) {
      throw of_rank(rank, Status(StatusCode::kUnavailable, str_cat("does not answer: ", error.status().message())));
    }
    if (status.incarnation == group_.incarnations_[rank]) return;
    // A group that is still formed takes it in. One that is there has no place for it, however long one waits.
    const StatusCode code = group_.formed() ? StatusCode::kFailedPrecondition : StatusCode::kUnavailable;
    throw of_rank(rank, Status(code, str_cat("was started anew, as incarnation ", status.incarnation)));
  }

  TaskGroup& group_;
  const uint64_t number_;
  std::chrono::milliseconds timeout_{};  // the first call waits for those that have just been started
  GroupClock::time_point deadline_{};
  const std::shared_ptr<Answers> answers_ = std::make_shared<Answers>();
  std::chrono::milliseconds look_after_ = kLookAfter;
  GroupClock::time_point next_look_{};
  Cancellation::Registration given_up_;
  std::vector<size_t> first_;     // questions, by rank
  std::vector<at::Tensor> kept_;  // others may be reading them
};

TaskGroup::TaskGroup(TaskGroupOptions options, Rendezvous& here, uint64_t incarnation, Peers& peers)
    : options_(std::move(options)),
      here_(here),
      incarnation_(incarnation),
      posts_(options_.tasks.size()),
      fetches_(std::make_shared<Cancellation>()) {
  if (options_.rank < 0 || options_.rank >= size()) {
    throw invalid_argument("a group of ", size(), " tasks has no rank ", options_.rank);
  }
  if (options_.sockets != GroupSockets::kNone && options_.addresses.size() != options_.tasks.size()) {
    throw invalid_argument("a group of ", size(), " tasks with ", options_.addresses.size(), " addresses");
  }
  if (!options_.machines.empty() && options_.machines.size() != options_.tasks.size()) {
    throw invalid_argument("a group of ", size(), " tasks with the machines of ", options_.machines.size());
  }
  for (int rank = 0; rank < size(); ++rank) {
    workers_.push_back(rank == options_.rank ? nullptr : peers.worker(options_.tasks[rank]));
  }
  const auto deadline = GroupClock::now() + options_.start_timeout;
  while (true) {
    await_incarnations(deadline);
    generation_ = find_generation();
    try {
      form();
      break;
    } catch (const Error& error) {
      // Whoever was started anew meanwhile is one of the next generation.
      if (error.code() != StatusCode::kUnavailable || GroupClock::now() >= deadline) throw;
      MUSTER_LOG(info) << described(rank()) << ": " << error.status().message() << "; the group is formed anew";
      if (gpus_) gpus_->abandon();
      leave();
      gpus_.reset();
      posts_.assign(posts_.size(), nullptr);
      std::shared_ptr<CollectiveRun> asked;  // of a generation that is gone; destroyed without the lock
      absl::MutexLock lock(&mu_);
      asked = std::move(next_);
      failure_ = Status();
      calls_ = gpu_calls_ = gpu_turn_ = 0;
      met_ = false;
    }
  }
  {
    absl::MutexLock lock(&mu_);
    formed_ = true;
  }
}

bool TaskGroup::formed() {
  absl::MutexLock lock(&mu_);
  return formed_;
}

void TaskGroup::fetch_for(int rank, int64_t edge) {
  workers_[rank]->receive(generation_, edge, {.cancellation = fetches_.get()},
                          [to = posts_[rank], edge, fetches = fetches_, name = described(rank),
                           task = options_.tasks[rank]](const Status& status, at::Tensor tensor) {
                            const bool named = status.ok() || names_a_rank(status);
                            const Status said(code_of_peer(status.code()), str_cat(name, ": ", status.message()),
                                              status.from(task).task());
                            to->deliver(edge, named ? status : said, std::move(tensor));
                          });
}

void TaskGroup::wake_posts() const {
  for (const auto& post : posts_) {
    if (post) post->wake();
  }
  if (wire_) wire_->wake();
}

TaskGroup::~TaskGroup() {
  bool failed = false;
  {
    absl::MutexLock lock(&mu_);
    failed = !failure_.ok();
  }
  // Whoever owns this may end its server next, and the others would hear of that instead of the reason.
  if (failed) std::this_thread::sleep_for(kHeardWithin);
  // The last words of the last call.
  const auto deadline = GroupClock::now() + kFetchedWithin;
  while (here_.values_of(generation_) > 0 && GroupClock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  fetches_->cancel(Status(StatusCode::kCancelled, "the group has ended"));
  if (gpus_ && failed) gpus_->abandon();
  leave();
}

void TaskGroup::keep(std::vector<at::Tensor> tensors) {
  absl::MutexLock lock(&mu_);
  std::move(tensors.begin(), tensors.end(), std::back_inserter(kept_));
}

// Every process calls itself localhost while it runs its own programs; the others know it by its rank.
std::string TaskGroup::origin_of(const Status& why) const {
  const bool of_this_one = why.task().empty() || why.task().starts_with("/job:localhost/");
  return of_this_one ? options_.tasks[options_.rank] : why.task();
}

std::string TaskGroup::described(int rank) const {
  const auto place = static_cast<size_t>(rank);
  return str_cat(
      "rank ", rank, " (", options_.tasks[place],
      place < options_.addresses.size() ? " at " + options_.addresses[place] : "",
      place < incarnations_.size() && incarnations_[place] != 0 ? str_cat(", incarnation ", incarnations_[place]) : "",
      ")");
}

std::shared_ptr<CollectiveRun> TaskGroup::next_call(bool by_gpus) {
  absl::MutexLock lock(&mu_);
  const uint64_t number = calls_++;
  std::shared_ptr<CollectiveRun> call = next_ ? std::move(next_) : std::make_shared<CollectiveRun>(*this, number);
  if (by_gpus) call->gpu_turn = gpu_calls_++;
  return call;
}

bool TaskGroup::by_gpus(const CollectiveCall& call, const std::vector<at::Tensor>& values) const {
  if (gpus_ == nullptr || !gpus_->takes(call, values)) return false;
  // Others may have other numbers of rows to gather: then their bytes say nothing.
  if (call.kind != CollectiveKind::kAllReduce) return true;
  int64_t bytes = 0;
  for (const at::Tensor& value : values) bytes += static_cast<int64_t>(value.nbytes());
  return bytes > gpu_sums_by_host_up_to_;
}

std::vector<at::Tensor> TaskGroup::run_by_gpus(CollectiveRun& mail, const CollectiveCall& call,
                                               const std::vector<at::Tensor>& values) {
  constexpr std::chrono::milliseconds kLookEvery{20};
  c10::AutoGradMode no_gradients(false);
  agree_on_gpus(call, values, mail);
  {
    absl::MutexLock lock(&mu_);
    while (gpu_turn_ != *mail.gpu_turn) {
      if (!failure_.ok()) throw Error(failure_);
      gpu_turn_changed_.wait_for(mu_, absl::FromChrono(kLookEvery));
    }
  }
  const auto look = [&] {
    mail.look();
    absl::MutexLock lock(&heard_->mu);
    if (!heard_->failure.ok()) throw Error(heard_->failure);
  };
  std::vector<at::Tensor> results = gpus_->run(call, values, look);
  absl::MutexLock lock(&mu_);
  ++gpu_turn_;
  gpu_turn_changed_.signal_all();
  return results;
}

void TaskGroup::prepare_next() {
  // Under the lock, though it asks: a call that came between would ask the same once more. It waits for nothing.
  absl::MutexLock lock(&mu_);
  if (met_ && !next_ && failure_.ok()) next_ = std::make_shared<CollectiveRun>(*this, calls_);
}

void TaskGroup::fail(const Status& why) {
  {
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) return;
    failure_ = why;
  }
  const Status told(why.code() == StatusCode::kCancelled ? StatusCode::kAborted : why.code(),
                    names_a_rank(why) ? why.message() : str_cat(described(rank()), ": ", why.message()),
                    origin_of(why));
  here_.abort(generation_, told);
  if (wire_) wire_->fail(told);
  for (const auto& post : posts_) {
    if (post) post->fail(told);  // may wait for a moment
  }
  for (const auto& worker : workers_) {
    if (worker) worker->abort(generation_, told);
  }
}

std::vector<at::Tensor> TaskGroup::run_as(CollectiveRun& mail, const CollectiveCall& call,
                                          const std::vector<at::Tensor>& values, const Cancellation* cancellation) {
  {
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) {
      throw Error(Status(failure_.code(),
                         str_cat(call.to_string(), ": the group has failed before: ", failure_.message()),
                         origin_of(failure_)));
    }
  }
  try {
    mail.begin(cancellation);
    std::vector<at::Tensor> results =
        mail.gpu_turn ? run_by_gpus(mail, call, values) : run_collective(call, values, sizes_, machines_, mail);
    prepare_next();
    return results;
  } catch (...) {
    const Status status = status_of(std::current_exception());
    fail(status);
    throw Error(Status(status.code(), str_cat(call.to_string(), ", call ", mail.number(), ": ", status.message()),
                       origin_of(status)));
  }
}

std::vector<at::Tensor> TaskGroup::run(const CollectiveCall& call, std::vector<at::Tensor> values,
                                       const Cancellation* cancellation) {
  check_values(call, values, size());  // before it is one of the calls: who gets this wrong has not failed the group
  return run_as(*next_call(by_gpus(call, values)), call, values, cancellation);
}

void TaskGroup::start(const CollectiveCall& call, std::vector<at::Tensor> values, const Cancellation* cancellation,
                      CollectiveDone done) {
  try {
    check_values(call, values, size());
  } catch (const Error& error) {
    return done(error.status(), {});
  }
  for (at::Tensor& value : values) {
    // The caller may go on and write to what it still has.
    if (!nobody_else_sees(value, false)) value = value.clone();
  }
  const bool gpus = by_gpus(call, values);
  // What the values come from, and what the results are for, be it that the host sums them.
  std::optional<c10::Stream> stream;
  const auto on_gpu =
      std::find_if(values.begin(), values.end(), [](const at::Tensor& value) { return !value.is_cpu(); });
  if (on_gpu != values.end()) {
    stream = c10::impl::VirtualGuardImpl(on_gpu->device().type()).getStream(on_gpu->device());
  }
  pool_.submit(
      [this, mail = next_call(gpus), call, values = std::move(values), stream, cancellation, done = std::move(done)] {
        const c10::OptionalStreamGuard on(stream);
        std::vector<at::Tensor> results;
        Status status;
        try {
          results = run_as(*mail, call, values, cancellation);
        } catch (...) {
          status = status_of(std::current_exception());
        }
        done(status, std::move(results));
      });
}

}  // namespace muster
