#include "muster/distribute/multi_worker_mirrored_strategy.h"

#include <ATen/ops/full.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <atomic>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/cluster/machine_shares.h"
#include "muster/cluster/roles.h"
#include "muster/collective/nccl_ranks.h"
#include "muster/collective/task_group.h"
#include "muster/distribute/local_devices.h"
#include "muster/distribute/mirrored_variables.h"
#include "muster/runtime/executor/core_share.h"
#include "muster/runtime/worker/local_worker.h"

namespace muster {
namespace {

// The server of this process and its group, as long as the strategy needs them.
class Membership {
 public:
  // `devices`: of this process, that take a step together.
  Membership(const ClusterResolver& resolver, const MultiWorkerOptions& options,
             const std::vector<std::string>& devices)
      : cluster_(resolver.cluster_spec()), task_(own_task(resolver)), server_(server_of(cluster_, task_, options)) {
    const int size = worker_count(cluster_, task_.job), rank = id_in_cluster(cluster_, task_);
    if (options.communication.bytes_per_pack <= 0) {
      throw invalid_argument("MultiWorkerMirroredStrategy: communication.bytes_per_pack is ",
                             options.communication.bytes_per_pack, ", expected at least 1");
    }
    across_ = {.group = 0, .rank = rank, .size = size, .bytes_per_pack = options.communication.bytes_per_pack};
    if (const std::optional<int> cores = share_of_cores(cluster_, task_)) use_cores(*cores);
    if (size == 1) return;
    static std::atomic<uint64_t> groups{0};
    across_.group = ++groups;
    const CommunicationImplementation implementation = options.communication.implementation;
    TaskGroupOptions group{.tasks = std::vector<std::string>(size),
                           .addresses = std::vector<std::string>(size),
                           .rank = rank,
                           .start_timeout = options.start_timeout,
                           .timeout = options.communication.timeout,
                           .sockets = sockets_for(options),
                           .measure = implementation != CommunicationImplementation::kRing};
    if (group.measure) {
      group.meet_gpus = meet_by_nccl({.device = local_worker().devices().device(devices[0]),
                                      .required = implementation == CommunicationImplementation::kNccl});
      group.gpus_alone = implementation == CommunicationImplementation::kNccl;
    }
    for (const char* job : {"chief", "worker"}) {
      if (!cluster_.contains(job)) continue;
      for (const auto& [index, address] : cluster_.tasks(job)) {
        const TaskId task{job, index};
        const int place = id_in_cluster(cluster_, task);
        group.tasks.at(place) = task.to_string();
        group.addresses.at(place) = address;
      }
    }
    local_worker().add_group(across_.group,
                             std::make_shared<TaskGroup>(std::move(group), server_.worker().rendezvous(),
                                                         server_.worker().incarnation(), server_.peers()));
    try {
      check_devices(static_cast<int64_t>(devices.size()));
    } catch (...) {
      local_worker().remove_group(across_.group);
      throw;
    }
    local_worker().set_replica(static_cast<uint64_t>(rank), task_.to_string());
  }
  ~Membership() {
    if (across_.alone()) return;
    local_worker().set_replica(0);
    local_worker().remove_group(across_.group);
  }
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  const AcrossWorkers& across() const { return across_; }
  const TaskId& task() const { return task_; }

 private:
  // Batches and means are for as many replicas here as anywhere.
  void check_devices(int64_t devices) const {
    const at::Tensor all = across_.make_one({.kind = CollectiveKind::kAllGather, .purpose = "the number of devices"},
                                            {at::full({1}, devices, at::kLong)})[0];
    for (int rank = 0; rank < across_.size; ++rank) {
      const auto theirs = all[rank].item<int64_t>();
      if (theirs == devices) continue;
      const std::shared_ptr<Collectives> group = local_worker().group(across_.group);
      throw failed_precondition("MultiWorkerMirroredStrategy: ", group->described(rank), " has ", theirs,
                                " devices, this one, ", group->described(across_.rank), ", has ", devices,
                                "; all need as many");
    }
  }
  static TaskId own_task(const ClusterResolver& resolver) {
    const std::optional<TaskId> task = resolver.task();
    if (!task) {
      throw invalid_argument(
          "MultiWorkerMirroredStrategy: nobody says which task this process is: TF_CONFIG has no \"task\"; start the "
          "program with `muster run --workers N`, or set it");
    }
    return *task;
  }
  // What is encrypted, or shown to nobody without a token, goes over the server.
  static GroupSockets sockets_for(const MultiWorkerOptions& options) {
    if (options.credentials.any()) return GroupSockets::kNone;
    return options.insecure ? GroupSockets::kOfAll : GroupSockets::kOfThisMachine;
  }
  static ServerOptions server_of(const ClusterSpec& cluster, const TaskId& task, const MultiWorkerOptions& options) {
    return {.cluster = cluster,
            .task = task,
            .credentials = options.credentials,
            .insecure = options.insecure,
            .connect_timeout = std::chrono::seconds(20)};
  }

  const ClusterSpec cluster_;
  const TaskId task_;
  Server server_;
  AcrossWorkers across_;
};

// Makes variables as MirroredStrategy does, with the values of the first worker.
class OnEachWorker : public VariableCreator {
 public:
  OnEachWorker(std::vector<std::string> devices, std::string task, const AcrossWorkers& across)
      : mirrored_(std::move(devices), std::move(task)), across_(across) {}
  Authority authority() const override { return Authority::kStrategy; }
  std::shared_ptr<Variable::State> create(const InitialValue& initial, VariableOptions options, bool split) override {
    if (initial.rows_on_demand()) {
      throw invalid_argument("variable \"", options.name,
                             "\": rows that are made on demand are for parameter servers; every worker of "
                             "MultiWorkerMirroredStrategy has the whole table, so give it whole values");
    }
    const at::Tensor first =
        across_.make_one({.kind = CollectiveKind::kBroadcast, .purpose = str_cat("variable \"", options.name, "\"")},
                         {initial.tensor()})[0];
    std::shared_ptr<Variable::State> made = mirrored_.create(InitialValue(first), std::move(options), split);
    made->across = across_;
    give_shares(made, initial);
    return made;
  }

 private:
  OnEachDevice mirrored_;
  const AcrossWorkers across_;
};

// The first worker writes for all, and all read the same.
class SavedByFirst : public SavedVariables {
 public:
  explicit SavedByFirst(const AcrossWorkers& across) : across_(across) {}
  Write begin_save(const Only& only) const override { return here_->begin_save(only); }
  void take_part(const Only& only) const override { (void)here_->begin_save(only); }
  void restore(Source source) override {
    source.silent = source.silent || !writes();
    here_->restore(std::move(source));
  }
  void check_all_used() const override { here_->check_all_used(); }
  void end_filling() override { here_->end_filling(); }
  void restorer_is_gone(const void* restorer) override { here_->restorer_is_gone(restorer); }

  bool writes() const override { return across_.rank == 0; }
  Status agree_on_save(int64_t step, const Status& written) override {
    const at::Tensor own = at::scalar_tensor(written.ok() ? 0 : 1, at::kLong);
    const at::Tensor first = across_.make_one(
        {.kind = CollectiveKind::kBroadcast, .purpose = str_cat("checkpoint of step ", step)}, {own})[0];
    if (writes() || first.item<int64_t>() == 0) return written;
    return Status(StatusCode::kAborted, "the first worker could not write the checkpoint; its own error says why");
  }
  void agree_on_step(int64_t step) override {
    const at::Tensor all =
        across_.make_one({.kind = CollectiveKind::kAllGather, .purpose = "the step that was restored"},
                         {at::full({1}, step, at::kLong)})[0];
    for (int rank = 0; rank < across_.size; ++rank) {
      const auto theirs = all[rank].item<int64_t>();
      if (theirs == step) continue;
      const std::shared_ptr<Collectives> group = local_worker().group(across_.group);
      throw failed_precondition(group->described(across_.rank), " has restored step ", step, ", ",
                                group->described(rank), " has restored ", theirs,
                                " (-1: none); all workers need to see the same directory");
    }
  }

 private:
  const std::shared_ptr<SavedVariables> here_ = variables_of_this_process();
  const AcrossWorkers across_;
};

// What can be said before the others are there.
void check_nccl(const std::string& device) {
  constexpr const char* kAsked = "MultiWorkerMirroredStrategy: communication.implementation is kNccl, but ";
  if (const std::string missing = missing_for_nccl(); !missing.empty()) throw failed_precondition(kAsked, missing);
  if (local_worker().devices().device(device).is_cuda()) return;
  throw failed_precondition(kAsked, "this worker computes on ", device, ", which is no GPU");
}

// Before anybody asks which devices this process has. Whoever names devices has shared them out.
void take_share_of_gpus(const ClusterResolver& resolver, const MultiWorkerOptions& options) {
  const std::optional<TaskId> task = resolver.task();
  if (!task || !options.devices.empty() || gpus_were_chosen()) return;
  const std::optional<GpuShare> share = share_of_machine(resolver.cluster_spec(), *task);
  if (!share || share_local_gpus(*share)) return;
  const auto is_gpu = [](const std::string& name) { return DeviceSpec::parse(name).type == "GPU"; };
  if (std::ranges::count_if(local_worker().devices().names(), is_gpu) < 2) return;
  MUSTER_LOG(warning) << task->to_string() << " uses all GPUs of its machine, as the " << share->tasks - 1
                      << " other tasks there do: its devices were in use before the strategy was made; make that "
                         "first, or set CUDA_VISIBLE_DEVICES";
}

StrategyParts multi_worker(const ClusterResolver& resolver, const MultiWorkerOptions& options) {
  take_share_of_gpus(resolver, options);
  std::vector<std::string> devices = known_devices(options.devices);
  if (options.devices.empty() && DeviceSpec::parse(devices[0]).type == "CPU") devices.resize(1);
  if (options.communication.implementation == CommunicationImplementation::kNccl) check_nccl(devices[0]);
  const auto member = std::make_shared<Membership>(resolver, options, devices);
  const AcrossWorkers& across = member->across();
  return {.variables = std::make_shared<OnEachWorker>(devices, member->task().to_string(), across),
          .replica_devices = devices,
          .across = across,
          .saved = std::make_shared<SavedByFirst>(across),
          .membership = member};
}

}  // namespace

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(const ClusterResolver& resolver, MultiWorkerOptions options)
    : Strategy(multi_worker(resolver, options)) {}

int MultiWorkerMirroredStrategy::worker() const { return across().rank; }

}  // namespace muster
