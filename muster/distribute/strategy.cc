#include "muster/distribute/strategy.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/movedim.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <atomic>
#include <iterator>

namespace muster {
namespace {

class RunHere : public StepRunner {
 public:
  std::vector<at::Tensor> run(TracedFunction::Entry& entry, std::vector<at::Tensor> tensors) override {
    return TracedFunction::run(entry, std::move(tensors), {});
  }
};

uint64_t seed_of_first(const AcrossWorkers& across) {
  const at::Tensor own = at::scalar_tensor(static_cast<int64_t>(random_id()), at::kLong);
  return static_cast<uint64_t>(
      across.make_one({.kind = CollectiveKind::kBroadcast, .purpose = "distribute"}, {own})[0].item<int64_t>());
}

}  // namespace

Strategy::Strategy(StrategyParts parts) : parts_(std::make_shared<Parts>()) {
  static std::atomic<uint64_t> made{0};
  static_cast<StrategyParts&>(*parts_) = std::move(parts);
  parts_->key = ++made;
  if (!parts_->runner) parts_->runner = std::make_shared<RunHere>();
  if (!parts_->saved) parts_->saved = variables_of_this_process();
}

at::Tensor Strategy::gather(const PerReplica<at::Tensor>& values, int64_t axis) const {
  for (const at::Tensor& value : values.values) {
    if (value.dim() > 0) continue;
    throw invalid_argument(
        "gather: the value of a replica is a scalar, which has no axis; use reduce, or unsqueeze it");
  }
  const at::Tensor own = at::cat(values.values, axis);
  if (parts_->across.alone()) return own;
  const at::Tensor rows_first = own.movedim(axis, 0);
  return parts_->across.make_one({.kind = CollectiveKind::kAllGather, .purpose = "gather"}, {rows_first})[0].movedim(
      0, axis);
}

Iterator Strategy::distribute(const Dataset& dataset) const {
  // Every process takes its rows of the same batches, so they must be shuffled alike.
  const AcrossWorkers& across = parts_->across;
  Iterator iterator = across.alone() ? dataset.iterator() : seeded(dataset, seed_of_first(across)).iterator();
  iterator.dealt = num_replicas_in_sync() > 1;
  return iterator;
}

void Strategy::keep(ModuleVariables variables) const {
  absl::MutexLock lock(&parts_->mu);
  parts_->modules.push_back(std::move(variables));
}

void Strategy::drop_gone_modules() const {
  std::vector<ModuleVariables> gone;  // destroyed without the lock
  absl::MutexLock lock(&parts_->mu);
  auto& modules = parts_->modules;
  auto kept = std::stable_partition(modules.begin(), modules.end(),
                                    [](const ModuleVariables& module) { return !module.module_is_gone(); });
  gone.assign(std::make_move_iterator(kept), std::make_move_iterator(modules.end()));
  modules.erase(kept, modules.end());
}

}  // namespace muster
