// The sequences of examples of a LocalWorker.
#include "muster/base/status.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {

void LocalWorker::open_source(uint64_t number, const std::string& description, const Owner& owner) {
  if (!options_.open_source) throw failed_precondition(devices_.task(), " opens no sequences of examples");
  add_source(number, options_.open_source(description, *this), owner);
}

void LocalWorker::add_source(uint64_t number, std::shared_ptr<ElementSource> source, const Owner& owner) {
  std::shared_ptr<LeaseTable::Entry> lease = lease_of(owner);
  absl::MutexLock lock(&mu_);
  if (!sources_.try_emplace(number, std::make_shared<SharedSource>(std::move(source)), std::move(lease)).second) {
    throw already_exists(devices_.task(), " has a sequence of examples with number ", number);
  }
}

void LocalWorker::close_source(uint64_t number) {
  std::shared_ptr<SharedSource> closed;  // destroyed without the lock: it may have a thread to join
  absl::MutexLock lock(&mu_);
  auto it = sources_.find(number);
  if (it == sources_.end()) return;
  closed = std::move(it->second.source);
  closed->close();  // a run may be looking for an element
  sources_.erase(it);
}

void LocalWorker::hand_out(uint64_t number, const PartsGiven& given, const Cancellation* cancellation,
                           PartsDone wanted) {
  try {
    source(number)->hand_out(given, cancellation, wanted);
  } catch (...) {
    wanted(status_of(std::current_exception()), {});
  }
}

std::shared_ptr<SharedSource> LocalWorker::source(uint64_t number) const {
  absl::MutexLock lock(&mu_);
  auto it = sources_.find(number);
  if (it == sources_.end()) {
    throw not_found(devices_.task(), " has no sequence of examples with number ", number);
  }
  if (it->second.lease) it->second.lease->heard();
  return it->second.source;
}

}  // namespace muster
