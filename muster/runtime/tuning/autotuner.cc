#include "muster/runtime/tuning/autotuner.h"

#include <ATen/ops/equal.h>

#include <algorithm>
#include <utility>

#include "muster/base/check.h"
#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/runtime/gpu/wait_for_device.h"
#include "muster/runtime/tuning/machine_name.h"

namespace muster {
namespace {

bool have_same_bits(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

// Which of the alternatives was chosen, if it is one of them.
std::optional<size_t> number_of(const TunedChoice& choice, const TuningQuestion& question) {
  for (size_t i = 0; i < question.alternatives.size(); ++i) {
    if (question.alternatives[i].name == choice.winner) return i;
  }
  return std::nullopt;
}

}  // namespace

Autotuner::Autotuner(TuningOptions options, Now now)
    : mode_(options.mode.value_or(TuningMode::kMeasure)),
      file_(options.file.empty() ? std::nullopt : std::make_optional<TuningFile>(options.file)),
      now_(std::move(now)) {
  if (file_) table_ = file_->read(mode_ != TuningMode::kPinned);
}

size_t Autotuner::choose(const TuningQuestion& question) {
  MUSTER_CHECK(!question.alternatives.empty());
  const TuningKey key{machine_of(question.device), question.what};
  if (const std::optional<TunedChoice> known = find(key)) {
    if (const auto number = number_of(*known, question)) return *number;
    tell_of_unknown(*known, question);
  }
  if (mode_ == TuningMode::kPinned) return 0;
  const size_t mine = measure(question);
  const TunedChoice choice{std::string(question.alternatives[mine].name)};
  if (const auto number = number_of(remember(key, choice.winner), question)) return *number;
  // The file keeps what it says, for those who know that.
  absl::MutexLock lock(&mu_);
  TunedChoice& here = table_[key];
  if (const auto another = number_of(here, question)) return *another;  // another thread was first
  here = choice;
  return mine;
}

void Autotuner::tell_of_unknown(const TunedChoice& choice, const TuningQuestion& question) {
  if (!file_) return;
  {
    absl::MutexLock lock(&mu_);
    if (std::exchange(told_of_unknown_, true)) return;
  }
  MUSTER_LOG(warning) << "tuning file \"" << file_->path() << "\", line " << choice.line << ": \"" << choice.winner
                      << "\" is none of the implementations of " << question.what
                      << ", as another version may have had it; such answers are "
                      << (mode_ == TuningMode::kPinned ? "left aside, and what they are of runs as recorded"
                                                       : "measured anew for this process");
}

std::optional<TunedChoice> Autotuner::find(const TuningKey& key) const {
  absl::MutexLock lock(&mu_);
  const auto it = table_.find(key);
  return it == table_.end() ? std::nullopt : std::make_optional(it->second);
}

TunedChoice Autotuner::remember(const TuningKey& key, std::string_view winner) {
  const TunedChoice mine{std::string(winner)};
  std::optional<TuningTable> in_file;
  Status failure;
  try {
    if (file_ && mode_ == TuningMode::kMeasure) in_file = file_->add({{key, mine}});
  } catch (const Error& error) {
    failure = error.status();
  }
  absl::MutexLock lock(&mu_);
  ++measured_;
  // What others have added is as good as what is measured here would be.
  if (in_file) table_.merge(*in_file);
  if (!failure.ok() && !complained_) {
    complained_ = true;
    MUSTER_LOG(warning) << "what is measured will not outlive the process: " << failure.message();
  }
  return table_.try_emplace(key, mine).first->second;
}

TuningTable Autotuner::all() const {
  absl::MutexLock lock(&mu_);
  return table_;
}

int Autotuner::measured() const {
  absl::MutexLock lock(&mu_);
  return measured_;
}

size_t Autotuner::measure(const TuningQuestion& question) const {
  constexpr int kTrials = 8;                                  // of each; the first one only warms up
  constexpr auto kPatience = std::chrono::milliseconds(300);  // after which fewer have to do
  struct Candidate {
    size_t number;
    Clock::duration best = Clock::duration::max();
  };
  std::vector<Candidate> candidates;
  for (size_t i = 0; i < question.alternatives.size(); ++i) candidates.push_back({i});
  auto faster = [](const Candidate& a, const Candidate& b) { return a.best < b.best; };
  const bool same_bits = question.goal != TuningGoal::kFastest;
  std::vector<std::vector<at::Tensor>> results(candidates.size());
  if (question.prepare) question.prepare();
  wait_for_device(question.device);
  const Clock::time_point begin = now_();
  // In turn, so that what else happens on the machine happens to all of them.
  for (int trial = 0; trial < kTrials && (trial < 3 || now_() - begin < kPatience); ++trial) {
    for (Candidate& candidate : candidates) {
      const Clock::time_point called = now_();
      std::vector<at::Tensor> made = question.alternatives[candidate.number].run();
      wait_for_device(question.device);
      candidate.best = std::min(candidate.best, now_() - called);
      if (trial == 0 && same_bits) results[candidate.number] = std::move(made);
    }
    if (trial > 0) continue;
    // The first call also sets things up, but not for that long.
    const auto least = std::min_element(candidates.begin(), candidates.end(), faster)->best;
    if (same_bits) {
      std::erase_if(candidates, [&](const Candidate& candidate) {
        return candidate.number > 0 && !have_same_bits(results[candidate.number], results[0]);
      });
    }
    if (question.goal == TuningGoal::kAnyOfSameBits) return candidates.back().number;
    std::erase_if(candidates, [&](const Candidate& candidate) { return candidate.best / 4 > least; });
    results.clear();
    if (candidates.size() == 1) break;
    for (Candidate& candidate : candidates) candidate.best = Clock::duration::max();
  }
  if (candidates.empty()) return 0;
  const Candidate best = *std::min_element(candidates.begin(), candidates.end(), faster);
  const Candidate& first = candidates.front();
  return first.number == 0 && best.best > first.best / 100 * (100 - question.percent) ? 0 : best.number;
}

}  // namespace muster
