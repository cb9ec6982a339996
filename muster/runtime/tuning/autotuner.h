// Finds out which of several implementations is fastest, once.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/base/thread_annotations.h>
#include <absl/synchronization/mutex.h>
#include <c10/core/Device.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/runtime/tuning/tuning_file.h"
#include "muster/runtime/tuning/tuning_options.h"

namespace muster {

// One of several ways to do the same. `run` does it once, on operands that it may not change, and returns the results.
struct Alternative {
  std::string_view name;  // lower-case letters and _
  std::function<std::vector<at::Tensor>()> run;
};

// …OfSameBits: what gives other bits than the first alternative does not come into question. kAnyOfSameBits: the last
// one that does come into question is wanted, fast or not.
enum class TuningGoal { kFastest, kFastestOfSameBits, kAnyOfSameBits };

struct TuningQuestion {
  std::string what;  // the op, and the shapes and types of its operands
  c10::Device device;
  std::vector<Alternative> alternatives;  // as recorded is the first
  TuningGoal goal = TuningGoal::kFastest;
  std::function<void()> prepare{};  // called before the first run, if there is one: the clock does not run yet
  int percent = 0;                  // by which one has to be faster than the first to be preferred to it
};

// Everything that is chosen by measuring is chosen here: the alternatives run in turn, and what was fastest is
// remembered for this question, this machine and this number of threads; beyond the process if there is a file
// (tuning_options.h). An answer never changes: two who ask the same get the same, and so do two processes with one
// file. An answer that is none of the alternatives, as another version of Muster may have left it in the file, stays
// there, and is measured anew for this process. Thread-safe: of two threads that ask first, both measure and one is
// right.
class Autotuner {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = std::function<Clock::time_point()>;

  // Throws for a file that is damaged, or is pinned and not there. REQUIRES of `options`: a mode that is not kOff.
  explicit Autotuner(TuningOptions options = {.mode = TuningMode::kMeasure}, Now now = Clock::now);

  // Which of the alternatives to use.
  size_t choose(const TuningQuestion& question) ABSL_LOCKS_EXCLUDED(mu_);

  // As if it had been measured; what is known already stays. Returns what is known then.
  TunedChoice remember(const TuningKey& key, std::string_view winner) ABSL_LOCKS_EXCLUDED(mu_);

  bool measures() const { return mode_ == TuningMode::kMeasure; }
  TuningTable all() const ABSL_LOCKS_EXCLUDED(mu_);
  int measured() const ABSL_LOCKS_EXCLUDED(mu_);  // questions, so far

 private:
  std::optional<TunedChoice> find(const TuningKey& key) const ABSL_LOCKS_EXCLUDED(mu_);
  size_t measure(const TuningQuestion& question) const;
  void tell_of_unknown(const TunedChoice& choice, const TuningQuestion& question) ABSL_LOCKS_EXCLUDED(mu_);

  const TuningMode mode_;
  const std::optional<TuningFile> file_;
  const Now now_;

  mutable absl::Mutex mu_;
  TuningTable table_ ABSL_GUARDED_BY(mu_);
  int measured_ ABSL_GUARDED_BY(mu_) = 0;
  bool complained_ ABSL_GUARDED_BY(mu_) = false;       // that the file cannot be written
  bool told_of_unknown_ ABSL_GUARDED_BY(mu_) = false;  // that the file has an answer that is none
};

}  // namespace muster
