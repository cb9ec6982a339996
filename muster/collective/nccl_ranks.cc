#include "muster/collective/nccl_ranks.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>

#include "muster/base/log.h"
#include "muster/base/status.h"
#include "muster/collective/rows_of_all.h"

#ifdef MUSTER_NCCL
#define USE_C10D_NCCL
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <absl/container/flat_hash_map.h>
#include <absl/synchronization/mutex.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <utility>
#endif

namespace muster {
namespace {

constexpr size_t kMostRanks = 128;

at::Tensor row_of(const GpuOfRank& own) {
  return at::tensor({int64_t{own.has_nccl}, int64_t{own.has_gpu}, int64_t{own.required}, own.first, own.last},
                    at::kLong);
}

std::vector<GpuOfRank> gpus_of_all(Collectives& group, const GpuOfRank& own) {
  const at::Tensor rows = rows_of_all(group, row_of(own), "which GPU each rank has");
  std::vector<GpuOfRank> by_rank;
  for (int64_t rank = 0; rank < rows.size(0); ++rank) {
    const auto number = [&](int64_t place) { return rows[rank][place].item<int64_t>(); };
    by_rank.push_back({.has_nccl = number(0) != 0,
                       .has_gpu = number(1) != 0,
                       .required = number(2) != 0,
                       .first = number(3),
                       .last = number(4)});
  }
  return by_rank;
}

}  // namespace

std::string why_no_nccl(const std::vector<GpuOfRank>& by_rank, const std::function<std::string(int rank)>& described) {
  const int size = static_cast<int>(by_rank.size());
  if (by_rank.size() > kMostRanks) return str_cat("the group has ", size, " ranks, more than ", kMostRanks);
  for (int rank = 0; rank < size; ++rank) {
    const GpuOfRank& own = by_rank[rank];
    if (!own.has_gpu) return str_cat(described(rank), " computes on no GPU");
    if (!own.has_nccl) return str_cat(described(rank), " was built without NCCL");
    for (int other = 0; other < rank; ++other) {
      const bool same = by_rank[other].first == own.first && by_rank[other].last == own.last;
      if (same) return str_cat(described(other), " and ", described(rank), " share a GPU");
    }
  }
  return "";
}

#ifdef MUSTER_NCCL

namespace {

// What ProcessGroupNCCL keeps in a c10d::Store is the word by which its ranks find each other, which the first one
// makes and the others ask for: while they meet, either is a broadcast over the group, so that no port is needed but
// those that the group has. What it writes there later, when it fails, is for itself.
class MeetingStore : public c10d::Store {
 public:
  explicit MeetingStore(Collectives& group) : group_(&group) {}

  void end_meeting() {
    absl::MutexLock lock(&mu_);
    group_ = nullptr;
  }

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override {
    if (Collectives* group = meeting()) exchange(*group, key, value);
    keep(key, value);
  }
  std::vector<uint8_t> get(const std::string& key) override {
    {
      absl::MutexLock lock(&mu_);
      if (const auto known = values_.find(key); known != values_.end()) return known->second;
    }
    Collectives* group = meeting();
    if (group == nullptr) throw not_found("NCCL asks for \"", key, "\", which nobody has said");
    std::vector<uint8_t> value = exchange(*group, key, {});
    keep(key, value);
    return value;
  }
  int64_t add(const std::string& key, int64_t value) override {
    absl::MutexLock lock(&mu_);
    return counts_[key] += value;
  }
  bool deleteKey(const std::string& key) override {
    absl::MutexLock lock(&mu_);
    return values_.erase(key) > 0;
  }
  bool check(const std::vector<std::string>& keys) override {
    absl::MutexLock lock(&mu_);
    return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return values_.contains(key);
    });
  }
  int64_t getNumKeys() override {
    absl::MutexLock lock(&mu_);
    return static_cast<int64_t>(values_.size());
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) static_cast<void>(get(key));
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }
  c10::intrusive_ptr<c10d::Store> clone() override {
    return c10::intrusive_ptr<c10d::Store>::reclaim_copy(this);  // it is thread-safe as it is
  }

 private:
  Collectives* meeting() {
    absl::MutexLock lock(&mu_);
    return group_;
  }
  void keep(const std::string& key, const std::vector<uint8_t>& value) {
    absl::MutexLock lock(&mu_);
    values_[key] = value;
  }
  // As the first rank has it.
  static std::vector<uint8_t> exchange(Collectives& group, const std::string& key, const std::vector<uint8_t>& own) {
    const CollectiveCall first{.kind = CollectiveKind::kBroadcast,
                               .purpose = str_cat("how GPUs find each other (\"", key, "\")")};
    const int64_t length =
        group.run(first, {at::tensor({static_cast<int64_t>(own.size())}, at::kLong)})[0].item<int64_t>();
    at::Tensor bytes = at::empty({length}, at::kByte);
    if (group.rank() == 0) std::memcpy(bytes.mutable_data_ptr(), own.data(), own.size());
    bytes = group.run(first, {bytes})[0];
    const auto* begin = bytes.const_data_ptr<uint8_t>();
    return {begin, begin + bytes.numel()};
  }

  absl::Mutex mu_;
  Collectives* group_ ABSL_GUARDED_BY(mu_);  // null: the ranks have met
  absl::flat_hash_map<std::string, std::vector<uint8_t>> values_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, int64_t> counts_ ABSL_GUARDED_BY(mu_);
};

c10d::ReduceOp nccl_op(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return c10d::ReduceOp::SUM;
    case Reduction::kMin: return c10d::ReduceOp::MIN;
    case Reduction::kMax: return c10d::ReduceOp::MAX;
  }
  return c10d::ReduceOp::SUM;
}

// Sums of halves are rounded once, at the end, as they are everywhere.
bool is_half(const at::Tensor& value) {
  return value.scalar_type() == at::kHalf || value.scalar_type() == at::kBFloat16;
}

class NcclRanks : public GpuRanks {
 public:
  NcclRanks(Collectives& group, c10::Device device) : device_(device), ranks_(group.size()) {
    const c10::DeviceGuard here(device_);
    auto store = c10::make_intrusive<MeetingStore>(group);
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = kOurs;
    nccl_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, group.rank(), group.size(), options);
    nccl_->eagerConnectSingleDevice(device_);
    store->end_meeting();
  }
  ~NcclRanks() override {
    try {
      if (!aborted_) nccl_->shutdown();
    } catch (const std::exception& error) {
      MUSTER_LOG(warning) << "NCCL: " << error.what();
    }
  }

  at::Tensor zeros(int64_t bytes) const override {
    return at::zeros({bytes / static_cast<int64_t>(sizeof(float))}, at::TensorOptions(device_).dtype(at::kFloat));
  }
  bool takes(const CollectiveCall& call, const std::vector<at::Tensor>& values) const override {
    return !values.empty() && call.kind != CollectiveKind::kReduce &&
           std::all_of(values.begin(), values.end(), [&](const at::Tensor& value) {
             return value.defined() && value.device() == device_ && value.layout() == at::kStrided &&
                    known(value.scalar_type()) && !loses_nan(call.reduction, value.scalar_type());
           });
  }

  std::vector<at::Tensor> run(const CollectiveCall& call, const std::vector<at::Tensor>& values,
                              const std::function<void()>& look) override {
    const c10::DeviceGuard here(device_);
    if (call.kind == CollectiveKind::kAllReduce) return all_reduce(call, values, look);
    std::vector<at::Tensor> results;
    for (const at::Tensor& value : values) {
      const at::Tensor given = value.resolve_neg().contiguous();
      switch (call.kind) {
        case CollectiveKind::kBroadcast: results.push_back(broadcast(call, given, look)); break;
        case CollectiveKind::kAllGather: results.push_back(all_gather(given, look)); break;
        case CollectiveKind::kReduceScatter: results.push_back(reduce_scatter(call, given, look)); break;
        case CollectiveKind::kAllToAll: results.push_back(all_to_all(given, look)); break;
        case CollectiveKind::kAllReduce:
        case CollectiveKind::kReduce:
        case CollectiveKind::kBarrier: break;
      }
    }
    return results;
  }

  void abandon() override {
    if (!std::exchange(aborted_, true)) nccl_->abort();
  }

 private:
  // Its own watch ends the process. The group's ends the call, with a name.
  static constexpr std::chrono::milliseconds kOurs = std::chrono::hours(24);
  static constexpr std::chrono::microseconds kLookOut{200}, kPause{50};

  // NCCL's least and most of a NaN and a number are the number, ours (as libtorch's) the NaN. The same program shall
  // not tell of a broken step on one machine and hide it on another, so these go the group's own way.
  static bool loses_nan(Reduction reduction, at::ScalarType type) {
    return reduction != Reduction::kSum && c10::isFloatingType(type);
  }

  static bool known(at::ScalarType type) {
    switch (type) {
      case at::kFloat:
      case at::kDouble:
      case at::kHalf:
      case at::kBFloat16:
      case at::kLong:
      case at::kInt:
      case at::kChar:
      case at::kByte:
      case at::kBool: return true;
      default: return false;
    }
  }

  void finish(const c10::intrusive_ptr<c10d::Work>& work, const std::function<void()>& look) {
    const auto began = std::chrono::steady_clock::now();
    try {
      while (!work->isCompleted()) {
        look();
        if (std::chrono::steady_clock::now() - began > kLookOut) std::this_thread::sleep_for(kPause);
      }
      if (work->exception()) std::rethrow_exception(work->exception());
      work->wait();
    } catch (...) {
      abandon();  // or what is under way would wait on the GPU for ever
      throw;
    }
  }

  // One message for all tensors of a type.
  std::vector<at::Tensor> all_reduce(const CollectiveCall& call, const std::vector<at::Tensor>& values,
                                     const std::function<void()>& look) {
    std::map<at::ScalarType, std::vector<size_t>> of_type;
    for (size_t i = 0; i < values.size(); ++i) of_type[values[i].scalar_type()].push_back(i);
    std::vector<at::Tensor> results(values.size());
    for (const auto& [type, members] : of_type) {
      std::vector<at::Tensor> parts;
      for (const size_t member : members) parts.push_back(values[member].resolve_neg().reshape({-1}));
      at::Tensor flat = at::cat(parts);
      const bool rounds = is_half(flat) && call.reduction == Reduction::kSum;
      if (rounds) flat = flat.to(at::kFloat);
      std::vector<at::Tensor> in_place{flat};
      c10d::AllreduceOptions options;
      options.reduceOp = nccl_op(call.reduction);
      if (flat.numel() > 0) finish(nccl_->allreduce(in_place, options), look);
      if (rounds) flat = flat.to(type);
      int64_t first = 0;
      for (const size_t member : members) {
        results[member] = flat.narrow(0, first, values[member].numel()).view(values[member].sizes());
        first += values[member].numel();
      }
    }
    return results;
  }

  at::Tensor broadcast(const CollectiveCall& call, const at::Tensor& value, const std::function<void()>& look) {
    std::vector<at::Tensor> in_place{value.clone()};
    c10d::BroadcastOptions options;
    options.rootRank = call.root;
    if (value.numel() > 0) finish(nccl_->broadcast(in_place, options), look);
    return in_place[0];
  }

  // Ranks may have different numbers of rows, NCCL wants as many of each.
  at::Tensor all_gather(const at::Tensor& value, const std::function<void()>& look) {
    at::Tensor own = at::tensor({value.size(0)}, value.options().dtype(at::kLong));
    at::Tensor counts = at::empty({ranks_}, own.options());
    finish(nccl_->_allgather_base(counts, own), look);
    counts = counts.to(at::kCPU);
    const auto most = counts.max().item<int64_t>();
    std::vector<int64_t> sizes = value.sizes().vec();
    sizes[0] = most;
    at::Tensor padded = value;
    if (value.size(0) < most) {
      padded = at::empty(sizes, value.options());
      padded.narrow(0, 0, value.size(0)).copy_(value);
    }
    sizes[0] = most * ranks_;
    at::Tensor all = at::empty(sizes, value.options());
    if (all.numel() > 0) finish(nccl_->_allgather_base(all, padded), look);
    std::vector<at::Tensor> rows;
    for (int64_t rank = 0; rank < ranks_; ++rank) {
      rows.push_back(all.narrow(0, rank * most, counts[rank].item<int64_t>()));
    }
    return at::cat(rows);
  }

  at::Tensor reduce_scatter(const CollectiveCall& call, const at::Tensor& value, const std::function<void()>& look) {
    const bool rounds = is_half(value) && call.reduction == Reduction::kSum;
    at::Tensor given = rounds ? value.to(at::kFloat) : value;
    std::vector<int64_t> sizes = value.sizes().vec();
    sizes[0] /= ranks_;
    at::Tensor own = at::empty(sizes, given.options());
    c10d::ReduceScatterOptions options;
    options.reduceOp = nccl_op(call.reduction);
    if (given.numel() > 0) finish(nccl_->_reduce_scatter_base(own, given, options), look);
    return rounds ? own.to(value.scalar_type()) : own;
  }

  at::Tensor all_to_all(const at::Tensor& value, const std::function<void()>& look) {
    at::Tensor given = value, dealt = at::empty_like(value);
    std::vector<int64_t> alike;  // as many rows for each
    if (value.numel() > 0) finish(nccl_->alltoall_base(dealt, given, alike, alike), look);
    return dealt;
  }

  const c10::Device device_;
  const int64_t ranks_;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> nccl_;
  bool aborted_ = false;
};

GpuOfRank described_gpu(const NcclOptions& options) {
  GpuOfRank own{.has_nccl = true, .required = options.required};
  if (!options.device || !options.device->is_cuda()) return own;
  own.has_gpu = true;
  const auto& number = at::cuda::getDeviceProperties(options.device->index())->uuid.bytes;
  static_assert(sizeof number == 2 * sizeof own.first);
  std::memcpy(&own.first, number, sizeof own.first);
  std::memcpy(&own.last, number + sizeof own.first, sizeof own.last);
  return own;
}

}  // namespace

std::string missing_for_nccl() { return ""; }

#else

namespace {

GpuOfRank described_gpu(const NcclOptions& options) {
  return {.has_gpu = options.device && options.device->is_cuda(), .required = options.required};
}

}  // namespace

std::string missing_for_nccl() {
#ifdef MUSTER_CUDA
  return "this build of Muster has no NCCL: nccl.h or CUDA's headers were not found when it was configured, or "
         "libtorch "
         "has no ProcessGroupNCCL";
#else
  return "libtorch was built without CUDA, so there is no ProcessGroupNCCL";
#endif
}

#endif

MeetGpus meet_by_nccl(NcclOptions options) {
  return [options = std::move(options)](Collectives& group) -> std::unique_ptr<GpuRanks> {
    const std::vector<GpuOfRank> by_rank = gpus_of_all(group, described_gpu(options));
    const std::string why_not = why_no_nccl(by_rank, [&](int rank) { return group.described(rank); });
    if (why_not.empty()) {
#ifdef MUSTER_NCCL
      return std::make_unique<NcclRanks>(group, *options.device);
#endif
    }
    bool any_required = false, any_gpu = false;
    for (const GpuOfRank& rank : by_rank) {
      any_required = any_required || rank.required;
      any_gpu = any_gpu || rank.has_gpu;
    }
    if (any_required) throw failed_precondition("NCCL was asked for, but ", why_not);
    if (any_gpu && group.rank() == 0) MUSTER_LOG(info) << "sums of GPUs go through the host: " << why_not;
    return nullptr;
  };
}

}  // namespace muster
