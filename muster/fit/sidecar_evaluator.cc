#include "muster/fit/sidecar_evaluator.h"

#include <algorithm>
#include <thread>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/fit/summary_writer.h"
#include "muster/train/checkpoints.h"

namespace muster {

SidecarEvaluator::SidecarEvaluator(Model model, ModelInput data, SidecarEvaluatorOptions options)
    : model_(std::move(model)), data_(std::move(data)), options_(std::move(options)) {
  if (options_.directory.empty()) throw invalid_argument("SidecarEvaluator: no directory of checkpoints");
}

std::optional<int64_t> SidecarEvaluator::wait_for_another(std::optional<int64_t> last) const {
  const auto deadline = std::chrono::steady_clock::now() + options_.patience;
  while (true) {
    const std::vector<Checkpoint> present = CheckpointDirectory(options_.directory).present();
    if (!present.empty() && (!last || present.back().step > *last)) return present.back().step;
    if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(options_.look_every);
  }
}

int64_t SidecarEvaluator::run() {
  Checkpoints checkpoints(model_.strategy(), {.directory = options_.directory});
  std::optional<SummaryWriter> summary;
  if (!options_.logs.empty()) summary.emplace(options_.logs);
  std::optional<int64_t> last;
  int64_t evaluated = 0;
  while (!options_.max_evaluations || evaluated < *options_.max_evaluations) {
    last = wait_for_another(last);
    if (!last) {
      MUSTER_LOG(info) << "the evaluator ends: no new checkpoint in " << options_.directory << " for "
                       << options_.patience.count() << " s";
      break;
    }
    try {
      checkpoints.restore({.step = *last, .allow_unused = true});  // it needs no optimizer
      checkpoints.finish_restore();
    } catch (const Error&) {
      const std::vector<Checkpoint> present = CheckpointDirectory(options_.directory).present();
      auto is_this = [&](const Checkpoint& checkpoint) { return checkpoint.step == *last; };
      if (std::ranges::none_of(present, is_this)) continue;  // newer ones have taken its place
      throw;
    }
    const Logs logs = model_.evaluate(data_, options_.evaluate);
    ++evaluated;
    if (summary) {
      for (const auto& [name, value] : logs)
        summary->scalar(str_cat("evaluation_", name, "_vs_iterations"), value, *last);
      summary->flush();
    }
    if (options_.on_evaluation && !options_.on_evaluation(*last, logs)) break;
  }
  return evaluated;
}

}  // namespace muster
