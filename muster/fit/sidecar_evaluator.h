// Evaluates what another process trains.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "muster/fit/callbacks/callbacks.h"
#include "muster/fit/model.h"

namespace muster {

struct SidecarEvaluatorOptions {
  std::string directory;       // where the checkpoints of the training appear, as ModelCheckpoint makes them
  EvaluateOptions evaluate{};  // how much of the data
  std::string logs{};          // for TensorBoard, if not empty: evaluation_loss_vs_iterations and so on in validation/
  std::optional<int64_t> max_evaluations{};  // ends after so many,
  std::chrono::seconds patience{600};        // and when no new checkpoint has come for so long
  // Throws Error{kDeadlineExceeded} if the first has not come after so long; without, it waits for it.
  std::optional<std::chrono::seconds> first_within{};
  std::chrono::milliseconds look_every{500};
  // Not empty: the best checkpoint so far, by this number of an evaluation, is in this directory, whatever becomes of
  // that in the other one. An evaluator that is started again goes on with the best number that it has.
  std::string best{};
  std::string monitor = "loss";
  Better better = Better::kAuto;
  // Called after each, with the steps that the optimizer had taken. False: it was the last.
  std::function<bool(int64_t iterations, const Logs&)> on_evaluation{};
};

// Follows the checkpoints of a training in a process of its own, which nobody waits for: it takes the newest, and those
// that came and went meanwhile are left out. The model is compiled as that which is trained, under any strategy or
// none. What it writes stands at the optimizer's steps, whatever numbers the checkpoints have.
class SidecarEvaluator {
 public:
  // Throws Error{kInvalidArgument} for no directory, a `best` that is the same one, and numbers or times below 0;
  // `look_every` is more.
  SidecarEvaluator(Model model, ModelInput data, SidecarEvaluatorOptions options);

  // Returns how many checkpoints it has evaluated. Says so, now and then, while there is none. Throws what evaluate()
  // throws, and Error{kNotFound} for variables that a checkpoint has not, such as the count of the optimizer's steps,
  // and for a `monitor` that an evaluation has not; a checkpoint that has gone while it was read is no error.
  int64_t run();

 private:
  class Best;

  // The step of the newest checkpoint after `last`; nothing if none comes in time.
  std::optional<int64_t> wait_for_another(std::optional<int64_t> last) const;

  Model model_;
  const ModelInput data_;
  const SidecarEvaluatorOptions options_;
};

}  // namespace muster
