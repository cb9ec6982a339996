#include "muster/distribute/strategy.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/movedim.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <atomic>
#include <iterator>

#include "muster/base/log.h"
#include "muster/data/auto_shard.h"
#include "muster/distribute/worker_share.h"
#include "muster/graph/elements.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {
namespace {

class RunHere : public StepRunner {
 public:
  std::vector<at::Tensor> run(TracedFunction::Entry& entry, std::vector<at::Tensor> tensors) override {
    return TracedFunction::run(entry, std::move(tensors), {});
  }
};

// What workers must do alike when they read a dataset, as the first one has it: it may see other files than they do.
struct ReadAlike {
  uint64_t seed;
  ShardPolicy policy;
  int64_t batch;  // rows of one
};
ReadAlike as_first(const AcrossWorkers& across, const ReadAlike& own) {
  const at::Tensor numbers =
      at::tensor({static_cast<int64_t>(own.seed), static_cast<int64_t>(own.policy), own.batch}, at::kLong);
  const at::Tensor first = across.make_one({.kind = CollectiveKind::kBroadcast, .purpose = "distribute"}, {numbers})[0];
  return {static_cast<uint64_t>(first[0].item<int64_t>()), static_cast<ShardPolicy>(first[1].item<int64_t>()),
          first[2].item<int64_t>()};
}

}  // namespace

Strategy::Strategy(StrategyParts parts) : parts_(std::make_shared<Parts>()) {
  static std::atomic<uint64_t> made{0};
  static_cast<StrategyParts&>(*parts_) = std::move(parts);
  parts_->key = ++made;
  if (!parts_->runner) parts_->runner = std::make_shared<RunHere>();
  if (!parts_->saved) parts_->saved = variables_of_this_process();
  absl::MutexLock lock(&all().mu);
  std::erase_if(all().parts, [](const std::weak_ptr<Parts>& other) { return other.expired(); });
  all().parts.push_back(parts_);
}

Strategy::AllParts& Strategy::all() {
  static auto* const all = new AllParts;  // a strategy may be static, too
  return *all;
}

Strategy Strategy::of(const ModuleVariables& module) {
  std::vector<std::weak_ptr<Parts>> candidates;
  {
    absl::MutexLock lock(&all().mu);
    candidates = all().parts;
  }
  for (const std::weak_ptr<Parts>& candidate : candidates) {
    std::shared_ptr<Parts> parts = candidate.lock();
    if (!parts) continue;
    const Strategy strategy(std::move(parts));
    const auto& scope = VariableScope::current();
    if (strategy.has_made(module) || (scope != nullptr && scope == strategy.parts_->variables)) return strategy;
  }
  return Strategy();
}

bool Strategy::has_made(const ModuleVariables& module) const {
  absl::MutexLock lock(&parts_->mu);
  return std::ranges::any_of(parts_->modules, [&](const ModuleVariables& made) {
    return std::ranges::any_of(made.all(), [&](const Variable& variable) {
      return std::ranges::any_of(module.all(), [&](const Variable& own) { return own.state() == variable.state(); });
    });
  });
}

at::Tensor Strategy::gather(const PerReplica<at::Tensor>& values, int64_t axis) const {
  if (!tracing()) parts_->runner->called_outside("gather");
  for (const at::Tensor& value : values.values) {
    if (value.dim() > 0) continue;
    throw invalid_argument(
        "gather: the value of a replica is a scalar, which has no axis; use reduce, or unsqueeze it");
  }
  check_one_of_each("gather", values.values.size());
  replicas_internal::check_alike("gather", values.values, axis);
  const at::Tensor rows_first = at::cat(values.values, axis).movedim(axis, 0);
  const auto all = parts_->across.make_one({.kind = CollectiveKind::kAllGather, .purpose = "gather"}, {rows_first});
  note_alike(all);
  return all[0].movedim(0, axis);
}

void Strategy::barrier(const std::string& purpose) const {
  if (tracing()) {
    throw failed_precondition("barrier for ", purpose,
                              " in a traced function, which runs later; call it where the function is called");
  }
  if (parts_->across.alone()) return;
  local_worker().group(parts_->across.group)->run({.kind = CollectiveKind::kBarrier, .purpose = purpose}, {});
}

void Strategy::check_one_of_each(const char* what, size_t values) const {
  const auto replicas = static_cast<size_t>(num_replicas_here());
  if (values == replicas) return;
  throw invalid_argument(what, " of the values of ", values, " replicas; the strategy has ", replicas,
                         parts_->across.alone() ? "" : " in this process",
                         ": give one for each, as run() returns them");
}

void Strategy::check_takes_steps_here() const {
  if (!parts_->servers) return;
  throw failed_precondition(
      "distribute: ParameterServerStrategy takes its steps at workers, which read data of their own: give "
      "ClusterCoordinator::create_per_worker_dataset a Dataset, or what distribute_dataset() returns, and schedule "
      "functions that take its iterator");
}

Iterator Strategy::distribute(const Dataset& dataset, ShardPolicy policy) const {
  check_takes_steps_here();
  if (policy == ShardPolicy::kDynamic || dataset.handed_out()) {
    throw invalid_argument(
        "distribute: ShardPolicy::kDynamic is for the workers of a ClusterCoordinator, which hands out "
        "what they read; those that take each step together read parts of their own");
  }
  const AcrossWorkers& across = parts_->across;
  const InputContext context = input_context();
  policy = chosen_policy(dataset, context, policy);
  Iterator pattern = dataset.pattern();
  if (across.alone()) {
    pattern.shared_by = num_replicas_here() > 1 ? SharedBy::kAllReplicas : SharedBy::kNobody;
    return iterator_over(dataset.open(local_worker()), std::move(pattern));
  }
  ElementSpec spec = dataset.element_spec();
  for (const TensorSpec& tensor : spec) {
    if (!tensor.sizes.empty()) continue;
    throw invalid_argument("distribute: an element is ", describe_elements({spec}),
                           ", which has no rows to divide over ", across.size, " workers; add batch(n)");
  }
  const ReadAlike alike = as_first(across, {random_id(), policy, spec.empty() ? 0 : spec[0].sizes[0]});
  say_once(described_part(dataset, context, alike.policy));
  if (alike.policy == ShardPolicy::kData) {
    // Each takes its rows of the same batches, so they must be shuffled alike.
    pattern.shared_by = SharedBy::kAllReplicas;
    return iterator_over(seeded(dataset, alike.seed).open(local_worker()), std::move(pattern));
  }
  WorkerShareOptions options{.spec = spec,
                             .rows = rows_of_steps(alike.batch, across.size, num_replicas_here(), across.rank),
                             .endless = is_endless(dataset),
                             .across = across};
  for (TensorSpec& tensor : spec) tensor.sizes[0] = options.rows[0];
  pattern.specs = numbers_of(spec);
  pattern.shared_by = num_replicas_here() > 1 ? SharedBy::kReplicasHere : SharedBy::kNobody;
  // Who reads all of it does so in an order of its own, or it would add nothing to what the others do.
  const Dataset part =
      alike.policy == ShardPolicy::kOff ? dataset : seeded(dataset, alike.seed).shard(context, alike.policy);
  return iterator_over(std::make_shared<WorkerShare>(part.open(local_worker()), std::move(options)),
                       std::move(pattern));
}

Iterator Strategy::distribute_own(const Dataset& dataset) const {
  check_takes_steps_here();
  const AcrossWorkers& across = parts_->across;
  if (num_replicas_in_sync() == 1) return dataset.iterator();
  const at::Tensor endless = at::scalar_tensor(is_endless(dataset) ? 1 : 0, at::kLong);
  const bool all_endless =
      across.make_one({.reduction = Reduction::kMin, .purpose = "distribute"}, {endless})[0].item<int64_t>() != 0;
  WorkerShareOptions options{
      .spec = dataset.element_spec(), .per_step = num_replicas_here(), .endless = all_endless, .across = across};
  return iterator_over(std::make_shared<WorkerShare>(dataset.open(local_worker()), std::move(options)),
                       dataset.pattern());
}

DistributedDataset Strategy::distribute_dataset(Dataset dataset) const {
  std::function<Iterator()> begin;
  if (!parts_->servers) begin = [strategy = *this, dataset] { return strategy.distribute(dataset); };
  const SharedBy shared_by = num_replicas_in_sync() > 1 ? SharedBy::kAllReplicas : SharedBy::kNobody;
  return {std::move(dataset), shared_by, std::move(begin)};
}

DistributedDataset Strategy::distributed_own(Dataset dataset) const {
  std::function<Iterator()> begin;
  if (!parts_->servers) begin = [strategy = *this, dataset] { return strategy.distribute_own(dataset); };
  return {std::move(dataset), SharedBy::kNobody, std::move(begin)};
}

void Strategy::say_once(std::string line) const {
  absl::MutexLock lock(&parts_->mu);
  if (parts_->said == line) return;  // as in the epoch before
  MUSTER_LOG(debug) << line;
  parts_->said = std::move(line);
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
