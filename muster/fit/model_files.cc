// What Model keeps on a disk.
#include <ATen/ops/scalar_tensor.h>

#include "muster/base/status.h"
#include "muster/fit/model.h"
#include "muster/io/checkpoint_directory.h"
#include "muster/train/checkpoints.h"

namespace muster {
namespace {

CheckpointsOptions files_of(const Model& model, const std::string& directory) {
  CheckpointsOptions files{.directory = directory, .keep = 1, .objects = {{"model", model.variables()}}};
  // Of a model without anything to train it keeps nothing.
  if (model.optimizer().bound()) files.objects.emplace("optimizer", model.optimizer());
  return files;
}

}  // namespace

void Model::save(const std::string& directory) const {
  if (directory.empty()) throw invalid_argument("Model::save: no directory");
  // As the one who writes sees it: the directories of other workers need not be the same.
  const std::vector<Checkpoint> present = CheckpointDirectory(directory).present();
  const at::Tensor next = at::scalar_tensor(present.empty() ? 0 : present.back().step + 1, at::kLong);
  const CollectiveCall as_chief{.kind = CollectiveKind::kBroadcast, .purpose = "Model::save"};
  const int64_t step = strategy().across().make_one(as_chief, {next})[0].item<int64_t>();
  Checkpoints(strategy(), files_of(*this, directory)).save(step);
}

void Model::load(const std::string& directory) {
  Checkpoints files(strategy(), files_of(*this, directory));
  // One that has nothing to train has no place for what an optimizer kept beside the weights.
  const bool trains = optimizer().bound();
  if (!files.restore({.allow_unused = !trains, .may_be_none = true})) {
    throw not_found("Model::load: there is no model in \"", directory,
                    "\"; expected a directory that save() has written; what a callback has saved is restored by "
                    "Checkpoints(model.strategy(), {.directory = …}).restore(), of the directory above ckpt-N");
  }
  files.finish_restore();
}

}  // namespace muster
