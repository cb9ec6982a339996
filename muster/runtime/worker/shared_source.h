#pragma once

#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>

#include <deque>
#include <memory>
#include <optional>

#include "muster/runtime/worker/element_source.h"

namespace muster {

// A sequence of examples as the runs of a worker share it: a run that cannot use its elements gives them back, and they
// are the next ones again. Thread-safe. The sequence itself is asked with no lock held, since it may take its time.
class SharedSource : public ElementSource {
 public:
  explicit SharedSource(std::shared_ptr<ElementSource> source) : source_(std::move(source)) {}

  std::optional<Element> next() override ABSL_LOCKS_EXCLUDED(mu_);
  bool begin_again() override ABSL_LOCKS_EXCLUDED(mu_);
  void close() override { source_->close(); }
  void used(int64_t elements) override { source_->used(elements); }
  void hand_out(const PartsGiven& given, const Cancellation* cancellation, PartsDone wanted) override {
    source_->hand_out(given, cancellation, std::move(wanted));
  }
  std::string position() const ABSL_LOCKS_EXCLUDED(mu_) { return source_->position_after(taken()); }
  InputTiming timing() const override { return source_->timing(); }
  // To the front: of several elements, the last one first.
  void give_back(Element element) ABSL_LOCKS_EXCLUDED(mu_);
  // How many were taken and not given back.
  int64_t taken() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  std::optional<Element> take_returned() ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<ElementSource> source_;

  mutable absl::Mutex mu_;
  std::deque<Element> returned_ ABSL_GUARDED_BY(mu_);
  int64_t taken_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace muster
