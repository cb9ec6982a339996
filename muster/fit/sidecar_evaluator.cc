#include "muster/fit/sidecar_evaluator.h"

#include <ATen/ops/scalar_tensor.h>
#include <absl/strings/match.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/fit/tensorboard/summary_writer.h"
#include "muster/train/checkpoints.h"
#include "muster/train/expect_option.h"

namespace muster {
namespace {

constexpr const char* kEvaluatorBest = "evaluator.best";  // in a checkpoint that was the best: by which number
constexpr std::chrono::seconds kRemindEvery{30};

// Who saves checkpoints without an optimizer is told so, and not of a variable that nobody has named.
void expect_iterations(const CheckpointIndex& index, const std::string& path) {
  std::set<std::string> names;
  for (const ShardEntry& entry : index.entries) names.insert(entry.variable);
  if (std::ranges::any_of(names, [](const std::string& name) { return absl::EndsWith(name, "/iterations"); })) return;
  throw not_found("SidecarEvaluator: `iterations` cannot be loaded from the checkpoint ", path, ", which has ",
                  absl::StrJoin(names, ", "),
                  "; expected the optimizer's variables, too, as ModelCheckpoint saves them");
}

}  // namespace

// Keeps the best of what was evaluated, as a checkpoint of its own.
class SidecarEvaluator::Best {
 public:
  Best(const Strategy& strategy, const SidecarEvaluatorOptions& options)
      : strategy_(strategy),
        directory_(options.best),
        checkpoints_(strategy, {.directory = options.best, .keep = 1}),
        best_(options.monitor, options.better) {
    checkpoints_.check_directory();
    if (strategy.is_chief()) best_.warn_if_guessed(kWhose);
    const std::optional<CheckpointIndex> left = directory_.latest_index();
    if (!left) return;
    const auto memory = left->metadata.find(kEvaluatorBest);
    if (memory != left->metadata.end()) best_.remember(kWhose, memory->second, 1);
  }

  // The variables are as in the checkpoint of that step, whose metadata this is.
  void see(const Logs& logs, int64_t step, std::map<std::string, std::string> metadata) {
    if (!logs.contains(best_.monitor())) {
      std::vector<std::string> names;
      for (const auto& [name, value] : logs) names.push_back(name);
      throw not_found("SidecarEvaluator: monitor \"", best_.monitor(), "\", but an evaluation gives ",
                      absl::StrJoin(names, ", "));
    }
    // Of several processes each may have seen another directory: the one who writes decides for all.
    const at::Tensor better = at::scalar_tensor(best_.improves(logs, kWhose) ? 1 : 0, at::kLong);
    const CollectiveCall as_chief{.kind = CollectiveKind::kBroadcast, .purpose = kWhose};
    if (strategy_.across().make_one(as_chief, {better})[0].item<int64_t>() == 0) return;
    metadata[kEvaluatorBest] = best_.memory(kWhose, {step});
    remove_others([&](int64_t other) { return other == step; });  // of an earlier training
    checkpoints_.save(step, metadata);
    remove_others([&](int64_t other) { return other > step; });  // older ones go with the save
  }

 private:
  static constexpr const char* kWhose = "SidecarEvaluator";

  template <class Which>
  void remove_others(const Which& which) {
    if (!strategy_.is_chief()) return;
    for (const Checkpoint& each : directory_.present()) {
      if (which(each.step)) directory_.remove(each.step);
    }
  }

  const Strategy strategy_;
  CheckpointDirectory directory_;
  Checkpoints checkpoints_;
  BestSoFar best_;
};

SidecarEvaluator::SidecarEvaluator(Model model, ModelInput data, SidecarEvaluatorOptions options)
    : model_(std::move(model)), data_(std::move(data)), options_(std::move(options)) {
  if (options_.directory.empty()) throw invalid_argument("SidecarEvaluator: no directory of checkpoints");
  constexpr const char* kWhose = "SidecarEvaluator";
  if (options_.max_evaluations) {
    expect_option(*options_.max_evaluations >= 0, kWhose, "max_evaluations", *options_.max_evaluations, "0 or more");
  }
  expect_option(options_.patience.count() >= 0, kWhose, "patience", options_.patience.count(), "0 s or more");
  if (options_.first_within) {
    const int64_t within = options_.first_within->count();
    expect_option(within >= 0, kWhose, "first_within", within, "0 s (it is there) or more");
  }
  const int64_t look_every = options_.look_every.count();
  expect_option(look_every > 0, kWhose, "look_every", look_every, "1 ms or more");
  auto place_of = [](const std::string& path) { return std::filesystem::weakly_canonical(path); };
  if (!options_.best.empty() && place_of(options_.best) == place_of(options_.directory)) {
    throw invalid_argument("SidecarEvaluator: best \"", options_.best,
                           "\" is the directory of the training's checkpoints, expected another one");
  }
}

std::optional<int64_t> SidecarEvaluator::wait_for_another(std::optional<int64_t> last) const {
  const auto begin = std::chrono::steady_clock::now();
  const std::optional<std::chrono::seconds> most = last ? options_.patience : options_.first_within;
  const auto end = most ? std::optional(begin + *most) : std::nullopt;
  auto reminder = begin;
  while (true) {
    const std::vector<Checkpoint> present = CheckpointDirectory(options_.directory).present();
    if (!present.empty() && (!last || present.back().step > *last)) return present.back().step;
    const auto now = std::chrono::steady_clock::now();
    const bool over = end && now >= *end;
    if (last && over) return std::nullopt;
    if (over) {
      throw deadline_exceeded("SidecarEvaluator: no checkpoint has come to the directory \"", options_.directory,
                              "\" in ", options_.first_within->count(),
                              " s (first_within), expected one of a training, as ModelCheckpoint leaves them");
    }
    if (!last && now >= reminder) {
      const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - begin);
      MUSTER_LOG(info) << "No checkpoints appear to be found in " << options_.directory << " after " << waited.count()
                       << " s: the evaluator waits for the first that the training leaves there";
      reminder = now + kRemindEvery;
    }
    std::chrono::steady_clock::duration pause = options_.look_every;
    if (end) pause = std::min(pause, *end - now);
    std::this_thread::sleep_for(pause);
  }
}

int64_t SidecarEvaluator::run() {
  Checkpoints checkpoints(model_.strategy(), {.directory = options_.directory});
  std::optional<SummaryWriter> summary;
  if (!options_.logs.empty()) summary.emplace(options_.logs + "/validation");
  std::optional<Best> best;
  if (!options_.best.empty()) best.emplace(model_.strategy(), options_);
  std::optional<int64_t> last;
  int64_t evaluated = 0;
  while (!options_.max_evaluations || evaluated < *options_.max_evaluations) {
    last = wait_for_another(last);
    if (!last) {
      MUSTER_LOG(info) << "the evaluator ends: no new checkpoint in " << options_.directory << " for "
                       << options_.patience.count() << " s";
      break;
    }
    CheckpointIndex index;
    try {
      const CheckpointDirectory directory(options_.directory);
      index = directory.index(*last);
      expect_iterations(index, directory.path_of(*last));
      checkpoints.restore({.step = *last, .allow_unused = true, .only_to_look = true});
      checkpoints.finish_restore();
    } catch (const Error&) {
      const std::vector<Checkpoint> present = CheckpointDirectory(options_.directory).present();
      auto is_this = [&](const Checkpoint& checkpoint) { return checkpoint.step == *last; };
      if (std::ranges::none_of(present, is_this)) continue;  // newer ones have taken its place
      throw;
    }
    const Logs logs = model_.evaluate(data_, options_.evaluate);
    const int64_t iterations = model_.optimizer().iterations();
    ++evaluated;
    if (summary) {
      for (const auto& [name, value] : logs)
        summary->scalar(str_cat("evaluation_", name, "_vs_iterations"), value, iterations);
      summary->flush();
    }
    if (best) best->see(logs, *last, std::move(index.metadata));
    if (options_.on_evaluation && !options_.on_evaluation(iterations, logs)) break;
  }
  return evaluated;
}

}  // namespace muster
