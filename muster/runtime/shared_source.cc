#include "muster/runtime/shared_source.h"

#include <utility>

namespace muster {
namespace {

thread_local const Cancellation* taking_for = nullptr;

}  // namespace

TakingFor::TakingFor(const Cancellation* run) : outer_(std::exchange(taking_for, run)) {}
TakingFor::~TakingFor() { taking_for = outer_; }
void TakingFor::throw_if_cancelled() {
  if (taking_for != nullptr) taking_for->throw_if_cancelled();
}

std::optional<Element> SharedSource::take_returned() {
  absl::MutexLock lock(&mu_);
  if (returned_.empty()) return std::nullopt;
  Element element = std::move(returned_.front());
  returned_.pop_front();
  ++taken_;
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

}  // namespace muster
