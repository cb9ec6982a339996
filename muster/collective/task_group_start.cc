// How the tasks of a group find each other, and out what is the best way between them.
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <future>
#include <limits>
#include <thread>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/collective/measure_sizes_of.h"
#include "muster/collective/near_ranks.h"
#include "muster/collective/rows_of_all.h"
#include "muster/collective/seconds_of_ways.h"
#include "muster/collective/task_group.h"
#include "muster/collective/wire_posts.h"
#include "muster/near/near_post.h"

namespace muster {
namespace {

using StartClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSayAfter{5'000};  // who is missing
constexpr std::chrono::milliseconds kAskAgainAfter{500};
constexpr std::chrono::milliseconds kAskPerRank{25};  // sooner in small groups: all ask all
constexpr std::chrono::milliseconds kAskedWithin = 3 * kAskAgainAfter;
constexpr int64_t kAborted = -1;                    // no edge of a call
constexpr int64_t kMark = 0x6d7573746572;           // what others are to find in this rank's memory
constexpr std::chrono::microseconds kLookOut{100};  // for what a process of this machine sends

std::string how(NearWay way) {
  switch (way) {
    case NearWay::kTrays: return "in memory between them";
    case NearWay::kWire: return "over TCP";
    case NearWay::kReading: return "reading each other's memory";
  }
  return "";
}

}  // namespace

std::string TaskGroup::in_words(std::chrono::milliseconds time) {
  return str_cat(static_cast<double>(time.count()) / 1000, " s");
}

void TaskGroup::await_incarnations(StartClock::time_point deadline) {
  incarnations_.assign(size(), 0);
  incarnations_[options_.rank] = incarnation_;
  auto say = StartClock::now() + kSayAfter;
  struct OtherSize {
    uint64_t incarnation = 0;
    int workers = 0;
    StartClock::time_point since{};
  };
  std::vector<OtherSize> others(options_.tasks.size());
  // Not at once: it may be one of an earlier job that is slow to end.
  const std::chrono::milliseconds sure_after = std::min(kSayAfter, options_.start_timeout / 20);
  const std::chrono::milliseconds longest = std::min(kAskAgainAfter, size() * kAskPerRank);
  for (std::chrono::milliseconds pause{20};; pause = std::min(2 * pause, longest)) {
    std::vector<std::string> missing;
    for (int rank = 0; rank < size(); ++rank) {
      if (incarnations_[rank] != 0) continue;
      Cancellation never;
      const auto answer = std::make_shared<std::promise<std::pair<Status, WorkerStatus>>>();
      workers_[rank]->start_status(
          never, [answer](const Status& status, const WorkerStatus& of_task) { answer->set_value({status, of_task}); });
      const auto [status, of_task] = answer->get_future().get();
      if (!status.ok()) {  // nobody there, somebody else there, a name that nobody knows: the words say which
        missing.push_back(str_cat(described(rank), ": ", status.message()));
        continue;
      }
      if (const int theirs = of_task.workers; theirs != 0 && theirs != size()) {
        const auto now = StartClock::now();
        OtherSize& other = others[static_cast<size_t>(rank)];
        if (other.incarnation != of_task.incarnation || other.workers != theirs) {
          other = {.incarnation = of_task.incarnation, .workers = theirs, .since = now};
        }
        if (now - other.since >= sure_after || now >= deadline) {
          incarnations_[rank] = of_task.incarnation;
          refuse_size(rank, theirs);
        }
        missing.push_back(str_cat(described(rank), ": it is one of ", theirs, " workers, of an earlier job maybe"));
        continue;
      }
      incarnations_[rank] = of_task.incarnation;
    }
    if (missing.empty()) return;
    if (StartClock::now() >= deadline) {
      throw deadline_exceeded(described(rank()), ": these have not come within ", in_words(options_.start_timeout),
                              ": ", absl::StrJoin(missing, "; "));
    }
    if (StartClock::now() >= say) {
      MUSTER_LOG(info) << described(rank()) << ": waits for " << absl::StrJoin(missing, "; ");
      say += kSayAfter;
    }
    std::this_thread::sleep_for(pause);
  }
}

// Ranks with different lists would wait for each other in vain.
void TaskGroup::refuse_size(int rank, int theirs) const {
  // Whoever owns this may end its server next, and the other one has not asked yet.
  std::this_thread::sleep_for(std::min(kAskedWithin, options_.start_timeout));
  throw Error(Status(
      StatusCode::kFailedPrecondition,
      str_cat(described(options_.rank), " is one of ", size(), " workers by its own list, ", described(rank),
              " is one of ", theirs, "; start all of them with the same list of workers (\"cluster\" in TF_CONFIG)"),
      options_.tasks[options_.rank]));
}

uint64_t TaskGroup::find_generation() const {
  // The groups that the same processes form are told apart by counting: they all form them in the same order.
  static absl::Mutex mu(absl::kConstInit);
  static auto& formed = *new absl::flat_hash_map<std::string, uint64_t>;
  const std::string members = absl::StrJoin(incarnations_, " ");
  absl::MutexLock lock(&mu);
  const uint64_t count = formed[str_cat(rank(), ": ", members)]++;
  // The same in every process: FNV-1a.
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : str_cat(members, " ", count)) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash | 1;
}

void TaskGroup::form() {
  sizes_ = AllReduceSizes::usual(size());
  machines_ = {};
  near_way_ = NearWay::kTrays;
  gpu_sums_by_host_up_to_ = -1;
  // Of no tensors: when it has ended, all are here, and want the same.
  run({.kind = CollectiveKind::kBarrier,
       .purpose = str_cat("a group ", options_.measure ? "that measures" : "of usual sizes",
                          options_.meet_gpus ? " and asks for GPUs" : "", options_.gpus_alone ? " alone" : "")},
      {});
  if (options_.near_memory) meet_near_ranks();
  if (options_.sockets != GroupSockets::kNone) meet_far_ranks();
  hear_of_failures();
  if (options_.meet_gpus) gpus_ = options_.meet_gpus(*this);
  {
    absl::MutexLock lock(&mu_);
    met_ = true;
  }
  const bool measures = options_.measure && size() > 1;
  const std::vector<NearWay> ways = near_ways();
  near_way_ = ways.front();
  const std::string near = measures ? choose_near_way(ways) : "";
  // It costs those that wait for letters a look at it.
  if (measures) leave_wire_nobody_needs();
  const std::string measured = measures ? measure_sizes_of(*this, sizes_) : "";
  const std::string gpus = measures ? choose_way_of_gpus() : "";
  if (rank() != 0) return;
  MUSTER_LOG(info) << described(rank()) << ": all " << size() << " are here; " << sizes_.to_string()
                   << (machines_.several() ? str_cat(", inside each of ", machines_.ranks.size(), " machines first")
                                           : "")
                   << measured << near << (gpus_ ? "; those of GPUs go from GPU to GPU" : "") << gpus;
}

std::vector<NearWay> TaskGroup::near_ways() {
  if (!machines_.shared()) return {NearWay::kTrays};
  bool connected = options_.sockets != GroupSockets::kNone, readable = options_.read_memory && !machines_.several();
  const at::Tensor mark = at::full({1}, kMark, at::kLong);
  const at::Tensor place = at::full({1}, reinterpret_cast<int64_t>(mark.const_data_ptr()), at::kLong);
  const at::Tensor places = rows_of_all(*this, place, "where to read");
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == options_.rank) continue;
    connected = connected && (posts_[rank] == nullptr || (wire_ && wire_->has(rank)));
    int64_t found = 0;
    readable =
        readable && posts_[rank] != nullptr &&
        posts_[rank]->read_memory({{&found, static_cast<uint64_t>(places[rank].item<int64_t>()), sizeof found}}) &&
        found == kMark;
  }
  at::Tensor own = at::zeros({2}, at::kLong);
  own[0] = connected ? 1 : 0;
  own[1] = readable ? 1 : 0;
  // When it has ended, nobody reads `mark` any more.
  const at::Tensor all = run({.reduction = Reduction::kMin, .purpose = "who may try what"}, {own})[0];
  std::vector<NearWay> ways;
  if (all[1].item<int64_t>() != 0) ways.push_back(NearWay::kReading);
  ways.push_back(NearWay::kTrays);
  if (all[0].item<int64_t>() != 0) ways.push_back(NearWay::kWire);
  return ways;
}

std::string TaskGroup::choose_near_way(const std::vector<NearWay>& ways) {
  constexpr int64_t kBytes = 16 << 20;
  constexpr int kTimes = 4;
  if (ways.size() == 1) return "";
  sizes_ = AllReduceSizes::always(AllReduceWay::kInParts);
  const at::Tensor values = at::zeros({kBytes / static_cast<int64_t>(sizeof(float))}, at::kFloat);
  const std::vector<double> seconds =
      seconds_of_ways(*this, values, kTimes, ways.size(), [&](size_t way) { near_way_ = ways[way]; });
  near_way_ = ways[fastest_of(seconds)];
  sizes_ = AllReduceSizes::usual(size());
  std::vector<std::string> tried;
  for (size_t way = 0; way < ways.size(); ++way) {
    tried.push_back(str_cat(std::llround(seconds[way] * 1e6), " us ", how(ways[way])));
  }
  return str_cat("; processes of one machine sum ", how(near_way_), " (", absl::StrJoin(tried, ", "), " for ",
                 kBytes >> 20, " MiB)");
}

void TaskGroup::leave_wire_nobody_needs() {
  const bool any_far = std::count(posts_.begin(), posts_.end(), nullptr) > 1;  // this rank has none to itself
  if (!wire_ || near_way_ == NearWay::kWire || any_far) return;
  leave();
  hear_of_failures();
}

std::string TaskGroup::choose_way_of_gpus() {
  if (!gpus_ || options_.gpus_alone) return "";
  constexpr std::array<int64_t, 3> kTriedBytes{int64_t{8} << 10, int64_t{128} << 10, int64_t{2} << 20};
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  constexpr int kTimes = 4;
  int64_t up_to = -1;
  std::string found;
  for (const int64_t bytes : kTriedBytes) {
    const std::vector<double> seconds = seconds_of_ways(
        *this, gpus_->zeros(bytes), kTimes, 2, [&](size_t way) { gpu_sums_by_host_up_to_ = way == 1 ? kAll : -1; });
    found = str_cat(" (", std::llround(seconds[0] * 1e6), " us for ", bytes >> 10, " KiB, ",
                    std::llround(seconds[1] * 1e6), " us through the host)");
    if (fastest_of(seconds) == 0) break;
    up_to = bytes;  // of larger ones GPUs have the faster wires
  }
  gpu_sums_by_host_up_to_ = up_to;
  return up_to < 0 ? found : str_cat(", sums of up to ", up_to >> 10, " KiB through the host", found);
}

void TaskGroup::meet_near_ranks() {
  std::vector<bool> wanted(posts_.size(), true);
  for (size_t rank = 0; rank < options_.machines.size(); ++rank) {
    wanted[rank] = options_.machines[rank] == options_.machines[static_cast<size_t>(options_.rank)];
  }
  std::vector<std::shared_ptr<NearPost>> posts = muster::meet_near_ranks(*this, wanted, generation_);
  const auto near = static_cast<size_t>(size()) - std::count(posts.begin(), posts.end(), nullptr) + 1;
  // Those that compute in step wait at the same time: who has a core for itself need not sleep.
  const bool cores_are_free = std::thread::hardware_concurrency() >= 2 * near;
  posts_ = std::move(posts);
  for (int rank = 0; rank < size(); ++rank) {
    NearPost* post = posts_[rank].get();
    if (post == nullptr) continue;
    post->open([=, this](int64_t edge) { fetch_for(rank, edge); },
               cores_are_free ? kLookOut : std::chrono::microseconds(0));
  }
  at::Tensor own = at::zeros({size()}, at::kByte);
  for (int rank = 0; rank < size(); ++rank) own[rank] = posts_[rank] ? 1 : 0;
  machines_ = Machines::of(rows_of_all(*this, own, "who shares memory with whom"));
}

void TaskGroup::meet_far_ranks() {
  const bool tries_near = options_.measure && machines_.shared();
  std::vector<bool> wanted(posts_.size());
  std::vector<std::string> addresses = options_.addresses;
  for (int rank = 0; rank < size(); ++rank) {
    wanted[rank] = rank != options_.rank && (posts_[rank] == nullptr || tries_near);
    if (posts_[rank]) addresses[rank] = "127.0.0.1:0";  // whatever the others call it
  }
  std::vector<Descriptor> sockets = muster::meet_far_ranks(*this, addresses, wanted, options_.sockets);
  for (int rank = 0; rank < options_.rank; ++rank) {
    if (sockets[rank] || posts_[rank]) continue;
    MUSTER_LOG(info) << described(rank)
                     << " cannot be reached at a port of its own; what it sums travels over its server";
  }
  if (std::none_of(sockets.begin(), sockets.end(), [](const Descriptor& socket) { return bool(socket); })) return;
  const bool cores_are_free = std::thread::hardware_concurrency() >= 4;
  wire_ = std::make_shared<WirePosts>(std::move(sockets), cores_are_free ? kLookOut : std::chrono::microseconds(0));
}

void TaskGroup::hear_of_failures() {
  // Who waits for a wire or a GPU asks the rendezvous for nothing, but whoever fails says so there.
  heard_ = std::make_shared<Heard>();
  abort_waiter_ =
      here_.receive(generation_, kAborted, [wire = wire_, heard = heard_](const Status& status, const at::Tensor&) {
        if (status.ok()) return;
        {
          absl::MutexLock lock(&heard->mu);
          heard->failure = status;
        }
        if (wire) wire->hear(status);
      });
}

void TaskGroup::leave() {
  if (heard_) {
    here_.give_up(generation_, kAborted, abort_waiter_, Status(StatusCode::kCancelled, "the group has ended"));
  }
  heard_.reset();
  wire_.reset();
}

}  // namespace muster
