#include "muster/runtime/worker/shared_source.h"

#include <utility>

namespace muster {
namespace {

thread_local const Cancellation* taking_for = nullptr;
thread_local Taking taking_so;

}  // namespace

TakingFor::TakingFor(const Cancellation* run, const Taking& how)
    : outer_(std::exchange(taking_for, run)), outer_how_(std::exchange(taking_so, how)) {}
TakingFor::~TakingFor() {
  taking_for = outer_;
  taking_so = outer_how_;
}
Taking TakingFor::how() { return taking_so; }
void TakingFor::throw_if_cancelled() {
  if (taking_for != nullptr) taking_for->throw_if_cancelled();
}
const Cancellation* TakingFor::current() { return taking_for; }

void ElementSource::hand_out(const PartsGiven&, const Cancellation*, PartsDone) {
  throw failed_precondition("this sequence of examples is read as a whole: nothing of it is handed out");
}

std::optional<Element> SharedSource::take_returned() {
  std::optional<Element> element;
  {
    absl::MutexLock lock(&mu_);
    if (returned_.empty()) return std::nullopt;
    element = std::move(returned_.front());
    returned_.pop_front();
    ++taken_;
  }
  source_->taken_again();
  return element;
}

std::optional<Element> SharedSource::next() {
  if (auto returned = take_returned()) return returned;
  std::optional<Element> element = source_->next();
  if (!element) return take_returned();  // the last one may have come back meanwhile
  absl::MutexLock lock(&mu_);
  ++taken_;
  return element;
}

void SharedSource::give_back(Element element) {
  absl::MutexLock lock(&mu_);
  returned_.push_front(std::move(element));
  --taken_;
}

int64_t SharedSource::taken() const {
  absl::MutexLock lock(&mu_);
  return taken_;
}

bool SharedSource::begin_again() {
  if (!source_->begin_again()) return false;
  absl::MutexLock lock(&mu_);
  returned_.clear();
  return true;
}

}  // namespace muster
