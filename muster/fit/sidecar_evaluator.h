// Evaluates what another process trains.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "muster/fit/model.h"

namespace muster {

struct SidecarEvaluatorOptions {
  std::string directory;       // where the checkpoints of the training appear, as ModelCheckpoint makes them
  EvaluateOptions evaluate{};  // how much of the data
  std::string logs{};          // for TensorBoard, if not empty: evaluation_loss_vs_iterations and so on
  std::optional<int64_t> max_evaluations{};  // ends after so many,
  std::chrono::seconds patience{600};        // and when no new checkpoint has come for so long
  std::chrono::milliseconds look_every{500};
  // Called after each, with the step of the checkpoint. False: it was the last.
  std::function<bool(int64_t step, const Logs&)> on_evaluation{};
};

// Follows the checkpoints of a training in a process of its own, which nobody waits for: it takes the newest, and those
// that came and went meanwhile are left out. The model is compiled as that which is trained, under any strategy or
// none.
class SidecarEvaluator {
 public:
  // Throws Error{kInvalidArgument} for no directory.
  SidecarEvaluator(Model model, ModelInput data, SidecarEvaluatorOptions options);

  // Returns how many checkpoints it has evaluated. Throws what evaluate() throws, and Error{kNotFound} for variables
  // that a checkpoint has not; one that has gone while it was read is no error.
  int64_t run();

 private:
  // The step of the newest checkpoint after `last`; nothing if none comes in time.
  std::optional<int64_t> wait_for_another(std::optional<int64_t> last) const;

  Model model_;
  const ModelInput data_;
  const SidecarEvaluatorOptions options_;
};

}  // namespace muster
