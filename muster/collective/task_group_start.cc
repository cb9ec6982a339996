// How the tasks of a group find each other.
#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <future>
#include <thread>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/collective/task_group.h"

namespace muster {
namespace {

using StartClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSayAfter{5'000};  // who is missing
constexpr std::chrono::milliseconds kAskAgainAfter{500};
constexpr std::chrono::milliseconds kAskPerRank{25};  // sooner in small groups: all ask all
constexpr std::chrono::milliseconds kAskedWithin = 3 * kAskAgainAfter;

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

}  // namespace muster
