#include "muster/train/sync_batch_norm.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>

#include <ostream>

#include "muster/distribute/replica_ops.h"
#include "muster/train/count_batch.h"
#include "muster/train/expect_features.h"

namespace muster {

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) {
  expect_features("SyncBatchNorm", input, options.num_features());
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  _check_input_dim(input);
  const int64_t features = options.num_features();
  std::vector<int64_t> others{0};  // all dimensions but that of the features
  std::vector<int64_t> broadcast(static_cast<size_t>(input.dim()), 1);
  broadcast[1] = features;
  for (int64_t i = 2; i < input.dim(); ++i) others.push_back(i);

  const at::Tensor x = at::isReducedFloatingType(input.scalar_type()) ? input.to(at::kFloat) : input;
  at::Tensor mean = running_mean, variance = running_var, centered;
  if (is_training() || !options.track_running_stats()) {
    // The number of examples travels with their sums: replicas may have different numbers of them.
    const at::Tensor own_count = at::full({1}, x.numel() / features, x.options().requires_grad(false));
    const at::Tensor sums = all_reduce(ReduceOp::kSum, at::cat({x.sum(others), own_count}));
    const at::Tensor count = sums.narrow(0, features, 1).detach();
    mean = sums.narrow(0, 0, features) / count;
    centered = x - mean.view(broadcast);
    // In a second pass, so that little is lost where the mean is much larger than the deviations from it.
    variance = all_reduce(ReduceOp::kSum, centered.square().sum(others)) / count;
    if (is_training() && options.track_running_stats()) update_statistics(mean.detach(), variance.detach(), count);
  } else {
    centered = x - mean.view(broadcast);
  }
  at::Tensor normal = centered * (variance + options.eps()).rsqrt().view(broadcast);
  if (options.affine()) normal = normal * weight.view(broadcast) + bias.view(broadcast);
  return normal.to(input.scalar_type());
}

void SyncBatchNormImpl::update_statistics(const at::Tensor& mean, const at::Tensor& variance, const at::Tensor& count) {
  // Where replicas have no copies of their own, the first one writes for all.
  const ReplicaContext* replica = ReplicaContext::current();
  const void* own = running_mean.const_data_ptr();
  if (replica == nullptr || replica->number_here() == 0) {
    first_statistics_ = own;
  } else if (own == first_statistics_) {
    return;
  }
  count_batch(*this, [&](const auto& share) {
    const at::Tensor unbiased = variance * (count / (count - 1).clamp_min(1));
    running_mean.lerp_(mean.to(running_mean.scalar_type()), share);
    running_var.lerp_(unbiased.to(running_var.scalar_type()), share);
  });
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "muster::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps() << ")";
}

}  // namespace muster
